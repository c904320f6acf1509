"""Nodes of a loop that every iteration computes from the same outer values are computed once, in front of the loop.

A loop may make no iteration. Moved nodes run all the same then, and must not fail where the model would not: only nodes
that provably cannot fail are moved. Nodes in the branches of an If stay: they may be expensive, and run only when they
are needed.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis.totality import check_cannot_fail
from ortopt.graph import scope
from ortopt.graph.match import Refusal, is_op, need
from ortopt.transformer import Context, GraphTransformer
from ortopt.transformers.control_flow._loops import LOOPS, bring_out, loops_below, move_out, need_open


class LoopInvariantCodeMotion(GraphTransformer):
    """Node of a ``Loop`` or ``Scan`` body that depends on outer values alone → the same node in front of it."""

    after = ("constant_folding", "control_flow_output_elimination", "loop_carried_elimination", "loop_unrolling")
    needs = LOOPS
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Move nodes out of the loops of a graph, innermost first: they may leave the next one too."""
        changed = False
        for loop, body in context.answered(loops_below(graph, context, *LOOPS), partial(_body, context=context)):
            changed |= _empty(loop, body, context)
        return changed


def _body(loop: ir.Node, context: Context) -> ir.Graph:
    need_open(loop, context)
    body = loop.attributes.get("body")
    if body is None or body.is_ref():
        raise Refusal("its body is not known", loop)
    return body.as_graph()


def _empty(loop: ir.Node, body: ir.Graph, context: Context) -> bool:
    """Move what does not depend on the iteration in front of a loop."""
    inside: set[ir.Value] = set(body.inputs)
    changed = False
    for node in context.cancellation.checked(tuple(body)):
        if node.graph is None:
            continue
        if any(value in inside for value in scope.read_by(node)):
            inside.update(node.outputs)
            continue
        if is_op(node, "Constant"):  # goes along with the first that needs it
            continue
        try:
            _may_move(node, context)
        except Refusal as refusal:
            context.refuse(node, refusal)
            inside.update(node.outputs)
            continue
        move = partial(_move, node, loop, body, context)
        if context.attempt((node,), move, f"{loop.op_type} computes it in every iteration"):
            changed = True
        else:
            inside.update(node.outputs)
    return changed


def _may_move(node: ir.Node, context: Context) -> None:
    """Refuse a node that must stay in its loop."""
    need(not any(semantics.subgraphs(node)), "it holds graphs", node)
    need(semantics.is_pure(node, context.model.functions), "it may have effects", node)
    need(not semantics.is_random(node, context.model.functions), "it is random", node)
    need(not semantics.dequantizes(node), "it is kept beside the op that takes quantized data", node)
    need(not any(value.is_graph_output() for value in node.outputs), "the body returns it", node)
    for value in node.inputs:
        inside = value is not None and value.graph is node.graph and value.is_graph_output()
        need(not inside, "the body returns a constant that it needs", value)
    check_cannot_fail(node)


def _move(node: ir.Node, loop: ir.Node, body: ir.Graph, context: Context) -> list[ir.Node]:
    for value in dict.fromkeys(node.inputs):
        if value is not None:
            bring_out(value, loop, body, context)
    move_out(node, loop, context)
    return [node]

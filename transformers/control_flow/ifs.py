"""An If that always takes one branch, or whose branches are equal, needs no If."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, attribute, inputs, is_op, need, need_known, tensor_of
from ortopt.graph.structural_keys import graph_key
from ortopt.onnx_ir_internals import is_needed
from ortopt.semantics import constant_tensor, same_constant
from ortopt.transformer import Context, GraphTransformer
from ortopt.transformers.control_flow._body_inlining import BodyInlining, Inlining
from ortopt.transformers.control_flow._loops import copied
from ortopt.transformers.control_flow._possible_branches import only_possible


class IfInlining(BodyInlining):
    """``If(constant)``, ``If(c)`` below ``If(c)`` → the nodes of the branch that it takes.

    So for an If of whose branches only one can run: what the other gives has a rank that a later node does not take.
    """

    needs = ("If",)

    def decide(self, node: ir.Node, context: Context) -> Inlining:
        """The branch that it always takes."""
        branch = _taken(node)
        return Inlining(lambda: _inline(node, branch, context))


def _taken(node: ir.Node) -> ir.Graph:
    """The branch that an If always takes."""
    (condition,) = inputs(node, 1)
    holds = _decided_above(node, condition)
    if holds is None:
        holds = only_possible(node)
    if holds is None:
        tensor = tensor_of(condition)
        need(tensor.dtype == ir.DataType.BOOL and tensor.size == 1, "the condition is not one boolean", condition)
        holds = bool(np.asarray(tensor.numpy()).reshape(-1)[0])
    name = "then_branch" if holds else "else_branch"
    given: ir.Graph | None = attribute(node, name, None)
    branch = need_known(given, f"it has no {name}", node)
    need(not branch.inputs, "the branch has inputs", node)
    need(len(branch.outputs) >= len(node.outputs), "the branch has too few results", node)
    return branch


def _decided_above(node: ir.Node, condition: ir.Value) -> bool | None:
    """The value of an If's condition where the If is in a branch of another If with the same, or the opposite, one."""
    if constant_tensor(condition) is not None:
        return None
    asked, negated = _without_not(condition)
    graph = scope.graph_of(node)
    for parent in scope.around(graph):
        if is_op(parent, "If") and parent.inputs and parent.inputs[0] is not None:
            above, opposite = _without_not(parent.inputs[0])
            if above is asked:
                branch = parent.attributes.get("then_branch")
                then = branch is not None and not branch.is_ref() and branch.value is graph
                return then ^ negated ^ opposite
        graph = scope.graph_of(parent)
    return None


def _without_not(condition: ir.Value) -> tuple[ir.Value, bool]:
    """The value that a condition is computed from by Not and Identity alone, and whether it is its opposite."""
    negated = False
    while (producer := condition.producer()) is not None and is_op(producer, "Not", "Identity"):
        (source,) = producer.inputs
        if source is None:
            break
        negated ^= producer.op_type == "Not"
        condition = source
    return condition, negated


def _inline(node: ir.Node, branch: ir.Graph, context: Context) -> list[ir.Node]:
    """Replace the If by the nodes of a branch; returns these."""
    moved, results = context.edit.inline(branch, node)
    context.edit.replace_and_remove(node, dict(zip(node.outputs, results, strict=False)), moved)
    return moved


class IfMerging(GraphTransformer):
    """``If`` with two equal branches → the nodes of one; a result that is equal in both → that value."""

    after = ("common_subexpression_elimination", "constant_sharing", "if_inlining")
    needs = ("If",)
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Merge the branches of a graph's Ifs, innermost first."""
        changed = False
        for node, (then, other) in context.answered(context.edit.index.nodes(graph, "If"), _branches):
            if graph_key(then) == graph_key(other):
                inline = partial(_inline, node, then, context)
                changed |= context.attempt((node,), inline, "both branches are equal")
            else:
                changed |= _share_results(node, then, other, context)
        return changed


def _branches(node: ir.Node) -> tuple[ir.Graph, ir.Graph]:
    then: ir.Graph | None = attribute(node, "then_branch", None)
    other: ir.Graph | None = attribute(node, "else_branch", None)
    if then is None or other is None:
        raise Refusal("it has no two branches", node)
    need(not then.inputs and not other.inputs, "a branch has inputs", node)
    need(len(then.outputs) == len(other.outputs) == len(node.outputs), "a branch has too few results", node)
    return then, other


def _share_results(node: ir.Node, then: ir.Graph, other: ir.Graph, context: Context) -> bool:
    """Replace results that both branches give alike by that value; control_flow_output_elimination then drops them."""
    changed = False
    for result, a, b in zip(tuple(node.outputs), tuple(then.outputs), tuple(other.outputs), strict=True):
        if not is_needed(result):
            continue
        new = _same_value(copied(a), copied(b))
        if new is None:
            continue
        if result.is_graph_output() and constant_tensor(new) is None:
            new = ir.node("Identity", [new]).outputs[0]
        why = f"both branches give the same for {result.name}"
        changed |= context.substitute({result: new}, before=node, origin=(node,), why=why)
    return changed


def _same_value(a: ir.Value, b: ir.Value) -> ir.Value | None:
    """The value that both results are: an outer value, or a constant; None where they may differ."""
    if a is b:
        return a
    first, second = constant_tensor(a), constant_tensor(b)
    if first is not None and second is not None and same_constant(first, second):
        return constant(first)
    return None

"""Where both branches give the same, the condition does not matter."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, attribute, need
from ortopt.graph.structural_keys import graph_key
from ortopt.onnx_ir_internals import is_needed
from ortopt.options import TransformerLevel
from ortopt.semantics import constant_tensor, same_constant
from ortopt.transformer import Context, GraphTransformer
from ortopt.transformers.control_flow._loops import copied


class IfMerging(GraphTransformer):
    """``If`` with two equal branches → the nodes of one; a result that is equal in both → that value."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("common_subexpression_elimination", "constant_sharing", "if_inlining")
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Merge the branches of a graph's Ifs, innermost first."""
        changed = False
        for node in context.edit.index.nodes(graph, "If"):
            try:
                then, other = _branches(node)
            except Refusal as refusal:
                context.refuse(node, refusal)
                continue
            if graph_key(then) == graph_key(other):
                changed |= _inline(node, then, context)
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


def _inline(node: ir.Node, branch: ir.Graph, context: Context) -> bool:
    def change() -> list[ir.Node]:
        moved, results = context.edit.inline(branch, node, node.name or node.outputs[0].name or node.op_type)
        context.edit.replace_and_remove(node, dict(zip(node.outputs, results, strict=True)), moved)
        return moved

    return context.attempt((node,), change, "both branches are equal")


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

"""An If whose condition is constant, or is that of an If around it, always takes the same branch."""

import numpy as np
import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.match import Refusal, attribute, inputs, is_op, need, tensor_of
from ortopt.options import TransformerLevel
from ortopt.semantics import constant_tensor
from ortopt.transformer import Context
from ortopt.transformers.control_flow._body_inlining import BodyInlining, Inlining


class IfInlining(BodyInlining):
    """``If(constant)``, ``If(c)`` below ``If(c)`` → the nodes of the branch that it takes."""

    levels = (TransformerLevel.LEVEL1,)
    op = "If"

    def decide(self, node: ir.Node, context: Context) -> Inlining:
        """The branch that it always takes."""
        branch = _taken(node)
        return Inlining(lambda: _inline(node, branch, context))


def _taken(node: ir.Node) -> ir.Graph:
    """The branch that an If always takes."""
    (condition,) = inputs(node, 1)
    holds = _decided_above(node, condition)
    if holds is None:
        tensor = tensor_of(condition)
        need(tensor.dtype == ir.DataType.BOOL and tensor.size == 1, "the condition is not one boolean", condition)
        holds = bool(np.asarray(tensor.numpy()).reshape(-1)[0])
    name = "then_branch" if holds else "else_branch"
    branch: ir.Graph | None = attribute(node, name, None)
    if branch is None:
        raise Refusal(f"it has no {name}", node)
    need(not branch.inputs, "the branch has inputs", node)
    need(len(branch.outputs) >= len(node.outputs), "the branch has too few results", node)
    return branch


def _decided_above(node: ir.Node, condition: ir.Value) -> bool | None:
    """The value of an If's condition where the If is in a branch of another If with the same, or the opposite, one."""
    if constant_tensor(condition) is not None:
        return None
    asked, negated = _without_not(condition)
    graph = scope.graph_of(node)
    while (parent := scope.of(graph).parent) is not None:
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
    prefix = node.name or node.outputs[0].name or node.op_type
    moved, results = context.edit.inline(branch, node, prefix)
    context.edit.replace_and_remove(node, dict(zip(node.outputs, results, strict=False)), moved)
    return moved

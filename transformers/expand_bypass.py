"""An op that broadcasts its operands does not need one that was broadcast before."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, dims, is_op, need, opset, same_dim, values
from ortopt.graph.onnx_ir_internals import is_needed
from ortopt.options import TransformerLevel
from ortopt.transformer import Context, GraphTransformer

BROADCASTING = frozenset(
    {
        *("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)
"""Ops that give every operand the dimensions of the result, since opset 8 at the latest."""


class ExpandBypass(GraphTransformer):
    """``op(Expand(x), y)``, ``op(ConstantOfShape, y)`` for a broadcasting op → ``op(x, y)``, ``op(constant, y)``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("expand_elimination",)
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Let users of what is only broadcast read what it was made of."""
        changed = False
        for node in (*context.edit.index.nodes(graph, "Expand"), *context.edit.index.nodes(graph, "ConstantOfShape")):
            if not node.outputs or not node.outputs[0].uses():
                continue
            try:
                small, shape = _source(node)
            except Refusal as refusal:
                context.refuse(node, refusal)
                continue
            for use in tuple(node.outputs[0].uses()):
                try:
                    _need_same_result(use.node, use.idx, shape)
                except Refusal as refusal:
                    context.refuse(node, refusal)
                    continue
                if context.rewrite((node, use.node)):
                    if small.producer() is None and small.graph is None:
                        small = context.edit.place(small, node)
                    context.edit.set_input(use.node, use.idx, small)
                    changed = True
                    context.mark = context.edit.version
            if not is_needed(node.outputs[0]):
                context.edit.sweep([node])
                context.mark = context.edit.version
        return changed


def _source(node: ir.Node) -> tuple[ir.Value, tuple[Dim, ...]]:
    """What a node broadcasts, and its shape; a new constant where it makes one number many."""
    if node.op_type == "Expand":
        (x,) = values(node, 1)
        return x, dims(x)
    filled = node.attributes.get("value")
    need(filled is None or not filled.is_ref(), "the function's caller decides value", node)
    if filled is None:
        return constant(0.0), ()
    array = filled.as_tensor().numpy().reshape(-1)
    need(array.size == 1, "it does not say with what it is filled", node)
    return constant(ir.Tensor(array.reshape(()), dtype=filled.as_tensor().dtype)), ()


def _need_same_result(user: ir.Node, position: int, shape: tuple[Dim, ...]) -> None:
    """Refuse a user that is no broadcasting op, or whose result could become smaller."""
    need(is_op(user, *BROADCASTING) and opset(user) >= 8, f"{user.op_type} needs it as large as it is")
    result = dims(user.outputs[0])
    others = [dims(value) for index, value in enumerate(user.inputs) if value is not None and index != position]
    for axis, dim in enumerate(reversed(result)):
        aligned = [other[-1 - axis] for other in (*others, shape) if axis < len(other)]
        given = any(same_dim(other, dim) for other in aligned)
        need(given or (isinstance(dim, int) and dim == 1), f"{user.op_type} may get its shape from it")
        fits = all(same_dim(other, dim) or (isinstance(other, int) and other == 1) for other in aligned)
        need(fits or not symbolic.is_known(dim), "the shapes may not fit")

"""Query heads that share keys and values are rows of one product: nothing needs to be repeated for them.

At level 3, when the fused ops of level 2 have taken what they could: they look for the heads as they are split.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    need,
    need_fixed,
    same_dim,
    shape_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.views.index_map import IndexMap, expanded, identity_of, renamed, reordered, reshaped, same
from ortopt.views.reading import maps

SWAPPED = (0, 1, 3, 2)
"""The permutation that swaps the last two dimensions of heads."""


class GroupedHeadsMerging(RewriteRule[Match]):
    """``MatMul(q, repeated heads)`` → ``Reshape(MatMul(Reshape(q), heads))``, a group of q's heads as rows of one.

    A FusedMatMul, with a scale or the heads transposed, stays one.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("attention_fusion",)
    roots = ("MatMul", "com.microsoft::FusedMatMul")
    lookback = 6
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A product with heads that are repeated."""
        left, right = inputs(root, 2)
        product = ops.MatMul(root)
        need(
            not (product.transposes_a or product.moves_batches),
            "the product moves other dimensions than the last ones of its second operand",
            root,
        )
        batch, count, _, _ = dims(left, 4)
        whole, heads, *_ = dims(right, 4)
        right, scaling = _unscaled(right)
        once, swapped = _repeated(right)
        need(count == heads and isinstance(count, int), "the heads are broadcast", left)
        need(same_dim(batch, whole), "the batches are not proven to be of one size", left)
        return Match((root,), lambda: _merged(root, left, once, scaling, swapped=swapped))


def _merged(root: ir.Node, left: ir.Value, right: ir.Value, scaling: ir.Node | None, *, swapped: bool) -> ir.Node:
    """The same product with fewer, higher matrices."""
    _, count, _, width = dims(left)
    _, fewer, rows, columns = dims(right)
    count, fewer = need_fixed((count, fewer), "the heads are not counted", root)
    if swapped != ops.MatMul(root).transposes_b:
        columns = rows
    if swapped:
        right = ir.node("Transpose", [right], {"perm": SWAPPED}).outputs[0]
    if scaling is not None:
        a, b = inputs(scaling, 2)
        right = ir.node(scaling.op_type, [right, b] if _is_number(b) else [a, right]).outputs[0]
    merged = ir.node("Reshape", [left, _shape(root, left, fewer, count // fewer, width)])
    product = ops.copied(root, [merged.outputs[0], right])
    return ir.node("Reshape", [product.outputs[0], _shape(root, left, count, 1, columns)])


def _unscaled(value: ir.Value) -> tuple[ir.Value, ir.Node | None]:
    """An operand before it is multiplied by a number, and the node that does so."""
    node = value.producer()
    if not is_op(node, "Mul", "Div"):
        return value, None
    a, b = inputs(node, 2)
    if _is_number(b):
        return a, node
    return (b, node) if node.op_type == "Mul" and _is_number(a) else (value, None)


def _is_number(value: ir.Value) -> bool:
    """Whether a value is a constant of one element that does not raise the rank of heads."""
    shape = shape_of(value)
    return is_constant(value) and shape is not None and len(shape) <= 4 and all(dim == 1 for dim in shape)


def _repeated(value: ir.Value) -> tuple[ir.Value, bool]:
    """What is repeated head by head to become a second operand, and whether its last dimensions are swapped then.

    Raises:
        Refusal: If nothing is.
    """
    for found in maps(value):
        for swapped in (False, True):
            if _repeats(found, swapped=swapped):
                return found.source, swapped
    raise Refusal("its second operand is not repeated", value)


def _repeats(found: IndexMap, *, swapped: bool) -> bool:
    """Whether a value, [batch, n · group, rows, columns], is each of n heads `group` times, perhaps swapped then."""
    whole = found.dims[1] if len(found.dims) == len(found.shape) == 4 else None
    count = found.shape[1] if whole is not None else None
    if not isinstance(whole, int) or not isinstance(count, int) or not 0 < count < whole or whole % count:
        return False
    batch, _, *matrix = found.shape
    grouped = expanded(renamed(identity_of(found), come=(2,)), (batch, count, whole // count, *matrix))
    heads = reshaped(grouped, (batch, whole, *matrix))
    return same(found, reordered(heads, SWAPPED) if swapped else heads)


def _shape(root: ir.Node, value: ir.Value, count: int, times: int, width: Dim) -> ir.Value:
    """The shape [batch, heads, rows, width] with some heads, and a multiple of the rows; 0 is a dimension that stays.

    Args:
        root: The product.
        value: Its operand, [batch, heads, length, …].
        count: How many heads there are to be.
        times: How many of its rows are one column's.
        width: The last dimension.
    """
    batch, _, length, _ = dims(value)
    if isinstance(length, int):
        return constant([0, count, length * times, 0])
    if is_never_zero(batch, root) and is_never_zero(width, root):
        return constant([0, count, -1, 0])  # which is not known where a dimension is 0
    # in one piece: of sizes that a Concat puts together ONNX Runtime computes one as -1, where a dimension is 0, too
    whole = ir.node("Shape", [value]).outputs[0]
    rows = ir.node("Mul", [whole, constant([0, 0, times, 0])]).outputs[0]
    return ir.node("Add", [rows, constant([0, count, 0, 0])]).outputs[0]

"""What a layer makes of some rows of a constant is some rows of what it makes of all: that is a constant, too.

DeBERTa takes the middle rows of a table of relative positions, as many as a text asks for, and every layer multiplies
them with matrices of its own: with long texts a quarter of all multiplications.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    Refusal,
    array_of,
    dtype,
    inputs,
    integers,
    is_constant,
    is_op,
    is_used_once,
    need,
    operand_constant,
    opset,
    optional,
    rank,
    static_dims,
    tensor_of,
)
from ortopt.linear.weights import MAX_WORK, rounded
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

MOST_GROWTH = 2
"""How many times as large as the matrix the product with all rows may be, whose place it takes."""


class Found(Struct, frozen=True):
    """A layer of selected rows.

    Attributes:
        nodes: The layer; what selects rows may serve others.
        selection: The Slice or Gather.
        axes: What is unsqueezed behind it, in order.
        table: What the layer makes of all rows.
    """

    nodes: tuple[ir.Node, ...]
    selection: ir.Node
    axes: tuple[tuple[int, ...], ...]
    table: np.ndarray


class RowSelectionFolding(RewriteRule[Found]):
    """``MatMul(Slice(C), W)`` → ``Slice(C · W)``, of constants; the same of a Gather, and of ``Add(Slice(C), b)``.

    Where the table is at most twice as large as the matrix that it takes the place of.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding",)
    roots = ("MatMul", "Add")
    opsets = (10, NEWEST_OPSET)  # before, the bounds of a Slice were attributes, and it is a constant
    numerics = Numerics.REORDERED
    lookback = 3

    def match(self, root: ir.Node) -> Found:
        """Rows of a constant matrix, and a constant that treats each row alike."""
        if root.op_type == "MatMul":
            rows, number = inputs(root, 2)
            need(is_constant(number), "what it is multiplied with is no constant", number)
        else:
            number, rows = operand_constant(root)
        selection, axes = _selection(rows)
        table = tensor_of(inputs(selection, 1)[0])
        need(table.dtype in FLOATS and dtype(number) == table.dtype, "they are no floats of one type", root)
        compute = _product if root.op_type == "MatMul" else _sum
        return Found((root,), selection, axes, compute(root, selection, number))

    def rewrite(self, found: Found) -> ir.Value:
        """Build the selection of the new table, and what adds axes to it."""
        old = found.selection
        kind = tensor_of(inputs(old, 1)[0]).dtype
        operands = [constant(found.table, kind), *old.inputs[1:]]
        value = ops.copied(old, operands).outputs[0]
        for axes in found.axes:
            value = ops.unsqueezed(value, axes, opset(old))
        return value


def _selection(rows: ir.Value) -> tuple[ir.Node, tuple[tuple[int, ...], ...]]:
    """What selects rows of a constant, and which axes are added behind it."""
    axes: list[tuple[int, ...]] = []
    node = rows.producer()
    while node is not None and is_op(node, "Unsqueeze"):
        size = rank(node.outputs[0])
        own = tuple(sorted(one % size for one in ops.Axes(node).stated_axes))
        need(size - 1 not in own, "an axis is added behind the rows", node)
        axes.insert(0, own)
        node = inputs(node, 1)[0].producer()
    if node is None or not is_op(node, "Slice", "Gather") or not is_constant(inputs(node, 1)[0]):
        raise Refusal("it is of no rows of a constant", rows)
    need(len(static_dims(inputs(node, 1)[0])) == 2, "the constant is no matrix", node)
    need(_along(node) in {0, -2}, "it selects something else than rows", node)
    return node, tuple(axes)


def _along(node: ir.Node) -> int:
    """The axis of a matrix along which a node selects, as it is written; the last for several."""
    if node.op_type == "Gather":
        return ops.Gather(node).axis_of(2)
    starts, axes = inputs(node, 2)[1], optional(node, 3)
    named = tuple(range(*static_dims(starts, 1))) if axes is None else tuple(integers(axes))
    return named[0] if len(named) == 1 else -1


def _product(root: ir.Node, selection: ir.Node, number: ir.Value) -> np.ndarray:
    """All rows times a matrix, which nothing else reads."""
    table = inputs(selection, 1)[0]
    (count, size), (between, columns) = static_dims(table, 2), static_dims(number, 2)
    need(size == between > 0, "the constants do not fit one another", root)
    need(is_used_once(number), "the matrix is used elsewhere", number)
    need(count <= MOST_GROWTH * size, "the table has many more rows than the matrix", table)
    need(count * size * columns <= MAX_WORK, "the constants are large", root)
    exact = array_of(table).astype(np.float64) @ array_of(number).astype(np.float64)
    return rounded(exact, dtype(table), table)


def _sum(root: ir.Node, selection: ir.Node, number: ir.Value) -> np.ndarray:
    """All rows, which nothing else reads, plus one."""
    table = inputs(selection, 1)[0]
    rows = next(value for value in root.inputs if value is not number)
    assert rows is not None
    need(is_used_once(table) and is_used_once(selection.outputs[0]), "the rows are used elsewhere", table)
    need(is_used_once(rows), "the rows are used elsewhere", rows)
    shape = static_dims(number)
    fits = len(shape) <= rank(rows) and math.prod(shape[:-1]) == 1 and (shape or (1,))[-1] in (1, static_dims(table)[1])
    need(fits, "it is not one number for each column", number)
    total = array_of(table).astype(np.float64) + array_of(number).astype(np.float64).reshape(-1)
    return rounded(total, dtype(table), table)

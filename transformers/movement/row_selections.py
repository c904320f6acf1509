"""Some rows of a table, or of what a layer gives, are selected behind what treats each row by itself.

What a layer makes of some rows of a constant is some rows of what it makes of all, which is a constant, too. DeBERTa
takes the middle rows of a table of relative positions, as many as a text asks for, and every layer multiplies them with
matrices of its own: with long texts a quarter of all multiplications.

And of a block that treats each row by itself, one row is enough where only one is read. Classifiers look at one
position of what the last layer of a transformer gives (a class token, the first word): the positions beside it need no
feed-forward network, no normalization and no projection there.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

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
    rank,
    static_dims,
    tensor_of,
    users,
)
from ortopt.linear.weights import MAX_WORK, rounded
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.rows import rows_of
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

MAX_GROWTH = 2
"""How many times as large as the matrix the product with all rows may be, whose place it takes."""


class RowSelectionFolding(RewriteRule[Match]):
    """``MatMul(Slice(C), W)`` → ``Slice(C · W)``, of constants; the same of a Gather, and of ``Add(Slice(C), b)``.

    Where the table is at most twice as large as the matrix that it takes the place of.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding",)
    roots = ("MatMul", "Add")
    opsets = (10, NEWEST_OPSET)  # before, the bounds of a Slice were attributes, and it is a constant
    numerics = Numerics.REORDERED
    lookback = 3

    def match(self, root: ir.Node) -> Match:
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
        rows_of_all = compute(root, selection, number)

        def build() -> ir.Value:
            operands = [constant(rows_of_all, table.dtype), *selection.inputs[1:]]
            value = ops.copied(selection, operands).outputs[0]
            for own in axes:
                value = ops.unsqueezed(value, own, opset(selection))
            return value

        return Match((root,), build)


def _selection(rows: ir.Value) -> tuple[ir.Node, tuple[tuple[int, ...], ...]]:
    """What selects rows of a constant, and which axes are added behind it."""
    axes: list[tuple[int, ...]] = []
    node = rows.producer()
    while is_op(node, "Unsqueeze"):
        size = rank(node.outputs[0])
        own = tuple(sorted(one % size for one in ops.Axes(node).stated_axes))
        need(size - 1 not in own, "an axis is added behind the rows", node)
        axes.insert(0, own)
        node = inputs(node, 1)[0].producer()
    if not is_op(node, "Slice", "Gather") or not is_constant(inputs(node, 1)[0]):
        raise Refusal("it is of no rows of a constant", rows)
    need(len(static_dims(inputs(node, 1)[0])) == 2, "the constant is no matrix", node)
    places = ops.Slice(node).axes if is_op(node, "Slice") else (ops.Gather(node).axis,)
    need(places == (0,), "it selects something else than rows", node)
    return node, tuple(axes)


def _product(root: ir.Node, selection: ir.Node, number: ir.Value) -> np.ndarray:
    """All rows times a matrix, which nothing else reads."""
    table = inputs(selection, 1)[0]
    (count, size), (between, columns) = static_dims(table, 2), static_dims(number, 2)
    need(size == between > 0, "the constants do not fit one another", root)
    need(is_used_once(number), "the matrix is used elsewhere", number)
    need(count <= MAX_GROWTH * size, "the table has many more rows than the matrix", table)
    need(count * size * columns <= MAX_WORK, "the constants are large", root)
    exact = array_of(table).astype(np.float64) @ array_of(number).astype(np.float64)
    return rounded(exact, dtype(table), table)


def _sum(root: ir.Node, selection: ir.Node, number: ir.Value) -> np.ndarray:
    """All rows, which nothing else reads, plus one."""
    table = inputs(selection, 1)[0]
    rows = next(value for value in inputs(root, 2) if value is not number)
    need(is_used_once(table) and is_used_once(selection.outputs[0]), "the rows are used elsewhere", table)
    need(is_used_once(rows), "the rows are used elsewhere", rows)
    shape = static_dims(number)
    fits = len(shape) <= rank(rows) and math.prod(shape[:-1]) == 1 and (shape or (1,))[-1] in (1, static_dims(table)[1])
    need(fits, "it is not one number for each column", number)
    total = array_of(table).astype(np.float64) + array_of(number).astype(np.float64).reshape(-1)
    return rounded(total, dtype(table), table)


class RowSelectionReordering(RewriteRule[Match]):
    """``Gather(Gelu(MatMul(x, W)), 0)`` → ``Gelu(MatMul(Gather(x, 0), W))``, for what treats each row by itself.

    The place is one number, and no other place is read. For a last layer this goes on up to its attention.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("residual_sum_conversion",)
    roots = ("Gather",)
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """One place of an axis before the last, of a value that nothing else reads but to select the same place."""
        value, listed = inputs(root, 2)
        need(is_constant(listed) and rank(listed) == 0, "it selects no single place", root)
        node = value.producer()
        if node is None or node.graph is not root.graph:
            raise Refusal("nothing in this graph computes the rows", value)
        of = rank(value)
        place = ops.Gather(root).axis
        need(place < of - 1, "it selects no row", root)
        (index,) = integers(listed)
        need(not value.is_graph_output(), "all rows are asked for", value)
        alike = users(value)
        need(all(_is_same(each, value, place, index) for each in alike), "other rows are read", value)
        outputs = sum(each.outputs[0].is_graph_output() for each in alike)
        need(outputs < 2, "two outputs are the same row", value)
        rows = rows_of(node)
        results = tuple(each.outputs[0] for each in alike)

        def build() -> dict[ir.Value, ir.Value]:
            selected = {
                value: ir.node("Gather", [value, constant(np.array(index, np.int64))], {"axis": place}).outputs[0]
                for value in dict.fromkeys(rows)
            }
            operands = [selected.get(value, value) if value is not None else None for value in node.inputs]
            new = ops.copied(node, operands, **({"axis": -1} if ops.OneAxis(node).is_stated else {}))
            return dict.fromkeys(results, new.outputs[0])

        return Match((node, *alike), build, results)


def _is_same(node: ir.Node, value: ir.Value, place: int, index: int) -> bool:
    """Whether a node selects the same row of a value."""
    if not is_op(node, "Gather") or node.inputs[0] is not value or node.inputs[1] is None:
        return False
    listed = node.inputs[1]
    alone = is_constant(listed) and rank(listed) == 0 and listed is not value
    return alone and integers(listed) == (index,) and ops.Gather(node).axis == place

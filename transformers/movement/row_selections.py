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
    Dim,
    Refusal,
    array_of,
    attribute,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    operand_constant,
    opset,
    rank,
    same_dim,
    shape_of,
    static_dims,
    tensor_of,
    users,
)
from ortopt.linear.weights import MAX_WORK, rounded
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.rows import rows_of
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM

MAX_GROWTH = 2
"""How many times as large as the matrix the product with all rows may be, whose place it takes."""

FEW = 2
"""Selected rows are few if there are at least so many times as many rows."""

MAX_STEPS = 16
"""How far a product is looked for above a selection."""


class RowSelectionFolding(RewriteRule[Match]):
    """``MatMul(Slice(C), W)`` → ``Slice(C · W)``, of constants; the same of a Gather, and of ``Add(Slice(C), b)``.

    Where the table is at most twice as large as the matrix that it takes the place of.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding",)
    roots = ("MatMul", "Add")
    opsets = (BOUNDS_ARE_INPUTS_FROM["Slice"], NEWEST_OPSET)  # before, a Slice of a constant is one
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
    """``Gather(Gelu(MatMul(x, W)), i)`` → ``Gelu(MatMul(Gather(x, i), W))``, for what treats each row by itself.

    No other rows are read. One place is selected, or a few of many rows of what a product gives, by a Gather, GatherND
    or Slice: of what a detector computes for each point of an image it keeps the best. For a last layer this goes on up
    to its attention.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("residual_sum_conversion",)
    roots = ("Gather", "GatherND", "Slice")
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Places of an axis before the last, of a value that nothing else reads but to select the same places."""
        (value,) = inputs(root, 1)
        node = value.producer()
        if node is None or node.graph is not root.graph:
            raise Refusal("nothing in this graph computes the rows", value)
        is_one = is_op(root, "Gather") and rank(inputs(root, 2)[1]) == 0
        _check_selection(root, value, is_one=is_one)
        need(not value.is_graph_output(), "all rows are asked for", value)
        alike = users(value)
        need(all(_is_same(each, root) for each in alike), "other rows are read", value)
        outputs = [each for each in alike if each.outputs[0].is_graph_output()]
        need(len(outputs) < 2, "two outputs are the same row", value)
        need(all(each.graph is root.graph for each in outputs), "a subgraph gives the row", value)
        rows = rows_of(node)
        need(is_one or _is_behind_product(node), "no product has more rows", node)
        results = tuple(each.outputs[0] for each in alike)

        def build() -> dict[ir.Value, ir.Value]:
            selected = {value: ops.copied(root, [value, *root.inputs[1:]]).outputs[0] for value in dict.fromkeys(rows)}
            operands = [selected.get(value, value) if value is not None else None for value in node.inputs]
            new = ops.copied(node, operands, **({"axis": -1} if ops.OneAxis(node).is_stated else {}))
            return dict.fromkeys(results, new.outputs[0])

        return Match((node, *alike), build, results)


def _check_selection(root: ir.Node, value: ir.Value, *, is_one: bool) -> None:
    """Refuse what selects something else than one place, or few of many rows, of one axis before the last."""
    if is_op(root, "Gather"):
        need(ops.Gather(root).axis < rank(value) - 1, "it selects no row", root)
    if is_one:
        need(is_constant(inputs(root, 2)[1]), "the place is computed", root)
        return
    if is_op(root, "GatherND"):
        need(attribute(root, "batch_dims", 0) == rank(value) - 2, "it selects no rows", root)
        need(same_dim(dims(inputs(root, 2)[1])[-1], 1), "several numbers name a row", root)
    if is_op(root, "Slice"):
        need(opset(root) >= BOUNDS_ARE_INPUTS_FROM["Slice"], "its bounds are attributes", root)
        need(rank(value) - 1 not in ops.Slice(root).axes, "it selects columns", root)
    before, after = dims(value), dims(root.outputs[0], rank(value))
    places = [axis for axis, size in enumerate(before) if not same_dim(size, after[axis])]
    need(len(places) == 1 and places[0] < len(before) - 1, "it selects something else than rows of one axis", root)
    total, count = before[places[0]], after[places[0]]
    if count != 1 and isinstance(count, int) and isinstance(total, int):
        need(count * FEW <= total, "it selects many of the rows", root)
    else:
        need(count == 1 or _are_best(root, count, total), "it is not known that it selects few of many rows", root)


def _are_best(root: ir.Node, count: Dim, total: Dim) -> bool:
    """Whether a TopK chose the selected rows, of as many as there are."""
    listed = inputs(root, 2)[1] if is_op(root, "Gather", "GatherND") else None
    node = None if listed is None else listed.producer()
    while node is not None and is_op(node, "Cast", *RESHAPING):
        listed = node.inputs[0]
        node = None if listed is None else listed.producer()
    if node is None or not is_op(node, "TopK") or listed is not node.outputs[1]:
        return False
    place = ops.OneAxis(node).axis
    sizes = ((inputs(node, 2)[0], total), (listed, count))
    shapes = [(shape_of(value), size) for value, size in sizes]
    return all(shape is not None and same_dim(shape[place], size) for shape, size in shapes)


def _is_behind_product(node: ir.Node) -> bool:
    """Whether fewer rows are fewer for a product, too: of this node, or of one whose rows nothing else reads."""
    waiting = [node]
    for _ in range(MAX_STEPS):
        at = waiting.pop()
        try:
            rows = rows_of(at)
        except Refusal:
            rows = ()
        if rows and is_op(at, "MatMul"):
            return True
        above = [value.producer() for value in rows if _is_for_it_alone(value, at)]
        waiting += [each for each in above if each is not None and each.graph is node.graph]
        if not waiting:
            break
    return False


def _is_for_it_alone(value: ir.Value, node: ir.Node) -> bool:
    return not value.is_graph_output() and all(user is node for user in users(value))


def _is_same(node: ir.Node, root: ir.Node) -> bool:
    """Whether a node selects the same rows of a value as another one."""
    if not is_op(node, root.op_type) or len(node.inputs) != len(root.inputs):
        return False
    if attribute(node, "batch_dims", 0) != attribute(root, "batch_dims", 0):
        return False
    if is_op(root, "Gather") and ops.Gather(node).axis != ops.Gather(root).axis:
        return False
    return node.inputs[0] is root.inputs[0] and all(map(_is_equal, node.inputs[1:], root.inputs[1:]))


def _is_equal(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether two operands are one value, or equal constants."""
    if a is b or a is None or b is None:
        return a is b
    return is_constant(a) and is_constant(b) and bool(np.array_equal(array_of(a), array_of(b)))

"""Terms by relative position: of a product with all of a table's rows, only those of distances that occur are computed.

DeBERTa multiplies each position with the embeddings of all distances that it knows, 512 of them, and takes of these
products, with GatherElements, one for each pair of positions. Of n positions there are 2·n - 1 distances: for short
texts most products go unused. Here the rows of these distances are looked up before the product, and what a pair needs
is on a diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.analysis.node_sizes import evaluated
from ortopt.framework.fusions import places_of
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    inputs,
    is_never_zero,
    is_op,
    need,
    need_float,
    producer,
    same_dim,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.relative_positions import SPARE, Differences, diagonals, differences, is_matrix_of, op, reshaped
from ortopt.rule import NEWEST_OPSET, RewriteRule

TURNED = (0, 2, 1)


class Table(Struct, frozen=True):
    """The second operand of a product.

    Attributes:
        value: The embeddings of each head, before they are repeated.
        repeats: How often the axes are repeated, or None: the first one only.
        is_turned: Whether it holds the embeddings as columns.
        heads: How many heads there are.
        width: The numbers of an embedding.
        length: How many embeddings there are.
    """

    value: ir.Value
    repeats: ir.Value | None
    is_turned: bool
    heads: int
    width: int
    length: int


class Found(Struct, frozen=True):
    """What is taken of a product by differences of positions.

    Attributes:
        nodes: The product, and what takes of it.
        x: The positions: [batch·heads, positions, numbers], or the last two in the other order.
        table: What they are multiplied with.
        distances: The row of the table for two positions.
        is_turned: Whether the positions are the product's columns.
        by_row: Whether the rows of `distances` are the positions of `x`, or its columns.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    table: Table
    distances: Differences
    is_turned: bool
    by_row: bool


class RelativeColumnConversion(RewriteRule[Found]):
    """``GatherElements(x · table, f(i - j))`` → the diagonals of ``x`` times the table's columns ``f(differences)``.

    It is done where there are at most as many distances as columns at all sizes that are expected. It gains
    the more, the shorter the sequence; a sequence that is longer than expected may take longer than before.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("GatherElements",)
    opsets = (15, NEWEST_OPSET)  # before, Shape gave all dimensions
    numerics = Numerics.REORDERED
    lookback = 4
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """Columns or rows of a product, the same for all batches and heads, that differences of positions say."""
        columns, index = inputs(root, 2)
        place = ops.Gather(root).axis
        need(place > 0, "it takes of batches or heads", root)
        is_turned = place == 1
        product = producer(columns, "MatMul")
        x, embeddings = reversed(inputs(product, 2)) if is_turned else inputs(product, 2)
        need_float(x)
        batch, count, width = _in_order(dims(x, 3), is_turned)
        table = _table(embeddings, batch, is_turned=not is_turned)
        need(same_dim(width, table.width), "an operand may be broadcast", product)
        is_some = table.repeats is None or is_never_zero(batch, root)
        need(is_some, "there may be no batch, to which the kernel broadcasts nothing", x)
        own = dims(index, 3)
        need(same_dim(own[0], batch) and same_dim(own[3 - place], count), "it takes of some rows only", index)
        matrix, _ = inputs(producer(index, "Expand"), 2)
        need(is_matrix_of(dims(matrix), own[1:]), "batches or heads take different columns", matrix)
        _need_less(root, own[1:], table.length)
        matrix, by_row = _unturned(matrix, by_row=not is_turned)
        return Found((product, root), x, table, differences(matrix, root), is_turned, by_row)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the product with the embedding of each distance, and take its diagonals."""
        table, distances = found.table, found.distances
        rows = _turned(table.value) if table.is_turned else table.value
        keys = ir.node("Gather", [rows, distances.row(SPARE, ascending=found.by_row)], {"axis": 1}).outputs[0]
        x = _turned(found.x) if found.is_turned else found.x
        leading = [ir.node("Shape", [x], {"end": 1}).outputs[0]]
        if table.repeats is not None:
            first = op("Slice", table.repeats, constant((0,)), constant((1,)))
            x = reshaped(x, first, constant((table.heads,)), distances.count, constant((table.width,)))
        made = diagonals(op("MatMul", x, _turned(keys)), leading, 1, distances, empty=True)
        return _turned(made) if found.is_turned else made


def _unturned(matrix: ir.Value, *, by_row: bool) -> tuple[ir.Value, bool]:
    """A matrix before its axes were exchanged, and whether its rows are the positions then."""
    node = matrix.producer()
    if node is None or not is_op(node, "Transpose"):
        return matrix, by_row
    shape = dims(matrix)
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    need(ops.Transpose(node).order == order, "other axes of the matrix are exchanged", node)
    return inputs(node, 1)[0], not by_row


def _in_order(shape: Sequence[Dim], is_turned: bool) -> Sequence[Dim]:
    """Three dimensions, the last two of them exchanged where they are turned."""
    return tuple(shape[at] for at in (TURNED if is_turned else range(3)))


def _table(value: ir.Value, batch: Dim, *, is_turned: bool) -> Table:
    """What repeats and turns embeddings, and where they come from."""
    need(same_dim(dims(value, 3)[0], batch), "an operand may be broadcast", value)
    repeats: ir.Value | None = None
    while (node := value.producer()) is not None:
        if is_op(node, "Tile") and repeats is None:
            value, repeats = inputs(node, 2)
            known = contents(repeats)
            need(known is not None and tuple(known[1:]) == (1, 1), "it repeats more than heads", node)
        elif is_op(node, "Transpose") and ops.Transpose(node).order == TURNED:
            (value,), is_turned = inputs(node, 1), not is_turned
        else:
            break
    heads, length, width = _in_order(dims(value, 3), is_turned)
    if not (isinstance(heads, int) and isinstance(length, int) and isinstance(width, int)):
        raise Refusal("the size of the table is not known", value)
    need(heads > 0 and width > 0, "the table is empty", value)
    return Table(value, repeats, is_turned, heads, width, length)


def _need_less(root: ir.Node, positions: Sequence[Dim], length: int) -> None:
    """Refuse tables with fewer rows than there are distances."""
    sizes = {"rows": positions[:1], "columns": positions[1:]}
    for place in places_of(root, scope.of(scope.graph_of(root)).options):
        known = evaluated(sizes, place)
        need(len(known) == len(sizes), "it is not known how many positions there are", root)
        need(2 * known["columns"][1] <= length, "there are more distances than columns", root)


def _turned(value: ir.Value) -> ir.Value:
    return ir.node("Transpose", [value], {"perm": TURNED}).outputs[0]

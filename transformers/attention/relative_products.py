"""Products with keys by relative position: the key of each distance is multiplied once, not that of each pair.

BERT with relative positions, and speech encoders like Wav2Vec2-BERT, look a key up for each pair of positions, and
multiply it with the query, or the key, of one of them. That is a product of n² rows, of which only 2·n - 1 differ. Here
every position is multiplied with all of these, as one product of matrices, and what a pair needs is on a diagonal: rows
of `length` elements one behind the other, cut into rows of `length` - 1, shift by one from row to row.

DeBERTa multiplies each position with the embeddings of all distances that it knows, 512 of them, and takes of these
products, with GatherElements, one for each pair of positions. For short texts most products go unused: here the rows of
the distances that occur are looked up before the product.

Where the table of keys is small, all of its rows are multiplied once, and the products are looked up instead of rows.
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
    is_constant,
    is_never_zero,
    is_op,
    need,
    need_float,
    producer,
    rank,
    same_dim,
    static_dims,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.einsum import Letters, equation_of
from ortopt.patterns.relative_positions import SPARE, Differences, diagonals, differences, is_matrix_of, op, reshaped
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

MAX_ROWS = 128
"""Larger tables have rows that a short sequence never reads."""

TURNED = (0, 2, 1)


class GatherEinsumReordering(RewriteRule[Match]):
    """``Einsum("bhld,lrd->bhlr", x, Gather(table, i))`` → ``GatherElements(x · tableᵀ, i)``.

    For tables of up to 128 rows: it gains the more, the longer the sequence.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Einsum",)
    opsets = (12, NEWEST_OPSET)
    providers = (CPU,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A product over the last axis of what is multiplied, and of rows that are chosen for pairs of positions."""
        x, chosen = inputs(root, 2)
        need(len(root.inputs) == 2, "it is no product of two", root)
        need_float(x)
        (own, pairs), result = equation_of(root)
        need(len(pairs) == 3 and len(own) >= 2, "it is no product with rows for pairs of positions", root)
        length, other, summed = pairs
        as_rows = (
            own[-2:] == (length, summed) and result == (*own[:-1], other) and len({*own, other}) == len(result) + 1
        )
        need(as_rows, "it is no product with rows for pairs of positions", root)
        gather = producer(chosen, "Gather")
        table, rows = inputs(gather, 2)
        need(is_constant(table) and ops.Gather(gather).axis == 0, "the rows are of no constant table", gather)
        count, size = static_dims(table)
        need(0 < count <= MAX_ROWS, "the table has rows that may not be read", table)
        need(same_dim(dims(x)[-1], size), "the rows are repeated", x)
        need(same_dim(dims(x)[-2], dims(rows, 2)[0]), "the lengths are not known to be equal", x)
        return Match((root,), lambda: _looked_up(x, table, rows))


class RelativeKeyConversion(RewriteRule[Match]):
    """``Einsum(q, Gather(table, f(i - j)))`` → the diagonals of ``q · Gather(table, f(differences))ᵀ``.

    For 8 to 384 positions the product takes a third of the time on ONNX Runtime's CPU.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("gather_einsum_reordering",)
    roots = ("Einsum",)
    opsets = (15, NEWEST_OPSET)  # before, Shape gave all dimensions
    numerics = Numerics.REORDERED
    lookback = 4
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """One operand is looked up by differences of positions, and the other has one of the two."""
        terms = equation_of(root)
        need(len(terms.terms) == 2, "it is no product of two operands", root)
        gather, place = _lookup(root)
        x, pairs = (terms.terms[1 - place], terms.terms[place])
        value = inputs(root, 2)[1 - place]
        need_float(value)
        by_row, is_turned = _roles(x, pairs, terms.result, root)
        need(same_dim(dims(value)[-2], dims(gather.outputs[0])[0]), "an operand may be broadcast", value)
        table, which = inputs(gather, 2)
        need(same_dim(dims(value)[-1], dims(table)[1]), "an operand may be broadcast", value)
        found = differences(which, root)
        return Match((root,), lambda: _by_key(value, table, found, by_row=by_row, is_turned=is_turned))


class RelativeColumnConversion(RewriteRule[Match]):
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

    def match(self, root: ir.Node) -> Match:
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
        found = differences(matrix, root)
        return Match((product, root), lambda: _by_column(x, table, found, by_row=by_row, is_turned=is_turned))


# -- products with the rows of a small table ---------------------------------------------------------------------------


def _looked_up(x: ir.Value, table: ir.Value, rows: ir.Value) -> ir.Node:
    """The products with all rows of the table, and those that are asked for."""
    columns = ir.node("Transpose", [table], {"perm": (1, 0)}).outputs[0]
    products = ir.node("MatMul", [x, columns]).outputs[0]
    last = len(dims(x)) - 1
    sizes = [ir.node("Shape", [rows]).outputs[0]]
    if last > 1:
        ahead = ir.node("Shape", [x]).outputs[0]
        sizes.insert(0, ir.node("Gather", [ahead, constant(list(range(last - 1)))]).outputs[0])
    shape = ir.node("Concat", sizes, {"axis": 0}).outputs[0] if last > 1 else sizes[0]
    indices = ir.node("Expand", [rows, shape]).outputs[0]
    return ir.node("GatherElements", [products, indices], {"axis": last})


# -- products with keys of pairs ---------------------------------------------------------------------------------------


def _lookup(root: ir.Node) -> tuple[ir.Node, int]:
    """The lookup by two positions, and which operand it is."""
    for place, value in enumerate(root.inputs):
        node = None if value is None else value.producer()
        if node is None or value is None or not is_op(node, "Gather") or rank(value) != 3:
            continue
        if rank(inputs(node, 2)[0]) == 2 and ops.Gather(node).axis == 0:
            return node, place
    raise Refusal("no operand is looked up for pairs of positions", root)


def _roles(x: Letters, pairs: Letters, result: Letters, root: ir.Node) -> tuple[bool, bool]:
    """Whether the rows of pairs are the positions of x, and whether the result has these last."""
    first, second, numbers = pairs
    need(len(x) > 1 and x[-1] == numbers and x[-2] in {first, second}, "the axes are in another order", root)
    own, other = (first, second) if x[-2] == first else (second, first)
    need(numbers not in result and other not in x, "it is no product of each position with keys", root)
    shared = x[:-2]
    need(result in {(*shared, own, other), (*shared, other, own)}, "the axes are in another order", root)
    return own == first, result[-1] == own


def _by_key(x: ir.Value, table: ir.Value, distances: Differences, *, by_row: bool, is_turned: bool) -> ir.Value:
    """The product with the key of each distance, and its diagonals.

    Args:
        x: What is multiplied, [..., positions, numbers].
        table: The keys.
        distances: Which key it is for two positions.
        by_row: Whether the rows of `distances` are the positions of `x`, or its columns.
        is_turned: Whether the result has the positions of `x` last.
    """
    row = distances.row(SPARE, ascending=by_row, empty=False)  # Einsum's kernel does not survive it
    keys = ir.node("Gather", [table, row], {"axis": 0}).outputs[0]
    turned = ir.node("Transpose", [keys], {"perm": [1, 0]}).outputs[0]
    place = rank(x) - 2
    leading = [ir.node("Shape", [x], {"end": place}).outputs[0]] if place else []  # it counts from 0
    made = diagonals(op("MatMul", x, turned), leading, place, distances, empty=False)
    if not is_turned:
        return made
    order = [*range(place), place + 1, place]
    return ir.node("Transpose", [made], {"perm": order}).outputs[0]


# -- products with the columns of a table ------------------------------------------------------------------------------


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


def _by_column(x: ir.Value, table: Table, distances: Differences, *, by_row: bool, is_turned: bool) -> ir.Value:
    """The product with the embedding of each distance, and its diagonals.

    Args:
        x: The positions: [batch·heads, positions, numbers], or the last two in the other order.
        table: What they are multiplied with.
        distances: The row of the table for two positions.
        by_row: Whether the rows of `distances` are the positions of `x`, or its columns.
        is_turned: Whether the positions are the product's columns.
    """
    rows = _turned(table.value) if table.is_turned else table.value
    keys = ir.node("Gather", [rows, distances.row(SPARE, ascending=by_row)], {"axis": 1}).outputs[0]
    x = _turned(x) if is_turned else x
    leading = [ir.node("Shape", [x], {"end": 1}).outputs[0]]
    if table.repeats is not None:
        first = op("Slice", table.repeats, constant((0,)), constant((1,)))
        x = reshaped(x, first, constant((table.heads,)), distances.count, constant((table.width,)))
    made = diagonals(op("MatMul", x, _turned(keys)), leading, 1, distances, empty=True)
    return _turned(made) if is_turned else made


def _unturned(matrix: ir.Value, *, by_row: bool) -> tuple[ir.Value, bool]:
    """A matrix before its axes were exchanged, and whether its rows are the positions then."""
    node = matrix.producer()
    if not is_op(node, "Transpose"):
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
    for place in places_of(root, scope.of_node(root).options):
        known = evaluated(sizes, place)
        need(len(known) == len(sizes), "it is not known how many positions there are", root)
        need(2 * known["columns"][1] <= length, "there are more distances than columns", root)


def _turned(value: ir.Value) -> ir.Value:
    return ir.node("Transpose", [value], {"perm": TURNED}).outputs[0]

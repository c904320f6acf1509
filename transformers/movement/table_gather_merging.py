"""Rows of many tables, one for each column of indices, as rows of one table: embeddings of categories."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    array_of,
    dims,
    dtype,
    inputs,
    integers,
    is_constant,
    is_op,
    is_used_once,
    need,
    rank,
    static_dims,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

FEWEST = 4
"""Of fewer tables the remainders and sums of indices cost as much as the Gathers."""

MAX_BYTES = 2**30
"""What one tensor of a file may have."""


class Row(Struct, frozen=True):
    """A row of a constant table, chosen by a column of indices.

    Attributes:
        nodes: The nodes that choose it.
        table: The table, [rows, width].
        indices: All columns, [..., columns].
        column: Which.
        stands_alone: Whether it got an axis of its own, before the width.
    """

    nodes: tuple[ir.Node, ...]
    table: ir.Value
    indices: ir.Value
    column: int
    stands_alone: bool


class TableGatherMerging(RewriteRule[Match]):
    """``Concat(Gather(A, i[:, 0]), Gather(B, i[:, 1]), …)`` → ``Gather([A; B; …], i mod rows + offsets)``.

    Models of tables and of what to recommend have dozens of these: one for each category.

    Negative indices count from the end of each table, so that a remainder says which row they mean. Where an index is
    out of range the original fails.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Concat",)
    opsets = (10, NEWEST_OPSET)  # before, there is no Mod
    lookback = 4

    def match(self, root: ir.Node) -> Match:
        """The longest run of operands that are rows of tables of one width, which nothing else uses."""
        values = inputs(root, len(root.inputs))
        found = [_row(value, root) for value in values]
        start, rows = max(_runs(found), key=lambda run: len(run[1]), default=(0, []))
        need(len(rows) >= FEWEST, "there are few rows of tables behind one another", root)
        size = sum(array_of(row.table).nbytes for row in rows)
        need(size <= MAX_BYTES, "the tables are too large for one tensor", root)
        before, behind = values[:start], values[start + len(rows) :]
        nodes = tuple(dict.fromkeys(itertools.chain.from_iterable(row.nodes for row in rows)))

        def build() -> ir.Value:
            merged = _merged(rows)
            if not before and not behind:
                return merged
            return ops.copied(root, [*before, merged, *behind]).outputs[0]

        return Match((*nodes, root), build)


def _runs(found: Sequence[Row | None]) -> Iterator[tuple[int, list[Row]]]:
    """Where rows begin that can be read from one table, and these rows."""
    place = 0
    for _, group in itertools.groupby(found, _kind):
        rows = list(group)
        known = [row for row in rows if row is not None]
        if known:
            yield place, known
        place += len(rows)


def _kind(row: Row | None) -> object:
    """What rows have in common that can be read from one table."""
    if row is None:
        return None
    return row.indices, dtype(row.table), static_dims(row.table)[1], row.stands_alone


def _row(value: ir.Value, concat: ir.Node) -> Row | None:
    try:
        return _read(value, concat)
    except Refusal:
        return None


def _read(value: ir.Value, concat: ir.Node) -> Row:
    """The row that an operand of a Concat is, in the last axis or in one of its own before it.

    Raises:
        Refusal: If it is none.
    """
    nodes: list[ir.Node] = []
    axis = ops.Concat(concat).axis
    stands_alone = axis == rank(value) - 2
    need(stands_alone or axis == rank(value) - 1, "rows are joined along another axis", concat)
    if stands_alone:
        unsqueeze = _own(value, "Unsqueeze")
        need(ops.Unsqueeze(unsqueeze).axes == (axis,), "the rows get another axis", unsqueeze)
        nodes.append(unsqueeze)
        value = inputs(unsqueeze, len(unsqueeze.inputs))[0]
    gather = _own(value, "Gather")
    table, at = inputs(gather, 2)
    need(is_constant(table) and is_used_once(table) and rank(table) == 2, "it is no table of its own", table)
    need(dtype(table) != ir.DataType.STRING, "its rows are texts", table)
    need(ops.Gather(gather).axis == 0 and 0 not in static_dims(table), "it chooses no rows", gather)
    chooser, indices, column = _column(at)
    return Row((*nodes, gather, *chooser), table, indices, column, stands_alone)


def _own(value: ir.Value, op: str) -> ir.Node:
    """The node of an op that gives a value which is used once.

    Raises:
        Refusal: If there is none.
    """
    node = value.producer()
    if node is None or not is_op(node, op) or not is_used_once(value):
        raise Refusal(f"no {op} of its own comes before", value)
    return node


def _column(value: ir.Value) -> tuple[tuple[ir.Node, ...], ir.Value, int]:
    """A column of a matrix: the nodes that choose it, if it is used once, the matrix, and which column it is."""
    node = value.producer()
    own = (node,) if node is not None and is_used_once(value) else ()
    if is_op(node, "Squeeze"):
        part = inputs(node, len(node.inputs))[0]
        split = part.producer()
        need(ops.Squeeze(node).axes == (rank(part) - 1,), "another axis is dropped", node)
        if not is_op(split, "Split"):
            raise Refusal("it is no column", value)
        need(ops.Split(split).is_last and all(dims(one)[-1] == 1 for one in split.outputs), "it is no column", split)
        return own, inputs(split, len(split.inputs))[0], list(split.outputs).index(part)
    if not is_op(node, "Gather"):
        raise Refusal("it is no column", value)
    matrix, place = inputs(node, 2)
    columns = dims(matrix)[-1] if rank(matrix) else None
    number = integers(place)[0] if is_constant(place) and rank(place) == 0 else None
    if not isinstance(columns, int) or number is None:
        raise Refusal("it is no column", value)
    there = ops.Gather(node).axis == rank(matrix) - 1 and -columns <= number < columns
    need(there, "it is no column", node)
    return own, matrix, number % columns


def _merged(rows: Sequence[Row]) -> ir.Value:
    """Build the rows of one table, side by side or each with an axis of its own."""
    tables = [array_of(row.table) for row in rows]
    counts = [len(table) for table in tables]
    indices, kind = rows[0].indices, dtype(rows[0].indices)
    columns = [row.column for row in rows]
    last = rank(indices) - 1
    if columns != list(range(len(columns))) or dims(indices)[last] != len(columns):
        chosen = constant(np.array(columns, np.int64))
        indices = ir.node("Gather", [indices, chosen], {"axis": last}).outputs[0]
    starts = [0, *itertools.accumulate(counts[:-1])]
    within = ir.node("Mod", [indices, constant(np.array(counts), kind)]).outputs[0]
    places = ir.node("Add", [within, constant(np.array(starts), kind)]).outputs[0]
    stacked = constant(np.concatenate(tables), dtype(rows[0].table))
    result = ir.node("Gather", [stacked, places]).outputs[0]
    if rows[0].stands_alone:
        return result
    width = len(rows) * static_dims(rows[0].table)[1]
    return ir.node("Reshape", [result, constant(np.array([0] * last + [width], np.int64))]).outputs[0]

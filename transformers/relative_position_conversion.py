"""A bias by relative position is a function of one number, not of two: each of its diagonals is computed once.

T5, MPNet and WavLM put the differences of all pairs of positions through a dozen ops, to look each up in a table. There
are n² differences, and 2·n - 1 different ones. The matrix with equal diagonals is then made from one row by copies: n
rows of `length` elements one behind the other, cut into rows of `length` - 1, shift by one from row to row.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    attribute,
    axis,
    dims,
    dtype,
    inputs,
    integers,
    is_constant,
    is_never_zero,
    is_op,
    is_scalar,
    need,
    plain_attributes,
    producer,
    rank,
    shape_of,
    static_dims,
)
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

POINTWISE: Final = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Ceil", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Log", "Max", "Min", "Mul", "Neg", "Not", "Or", "Round", "Sign", "Sub", "Where"),
    )
)
"""Ops that give for each element what it alone says."""

MOST_NODES: Final = 40
FEWEST_NODES: Final = 4
"""With fewer nodes between the differences and the table, there is little to save."""

SPARE: Final = 16
"""Elements behind the last one that counts, so that it is not among those that kernels compute one by one: nearly all
elements of the matrix are not, either."""

HEADS_FIRST: Final = (2, 0, 1)
NONE: Final[tuple[int, ...]] = ()


class Found(Struct, frozen=True):
    """A table's rows by relative position.

    Attributes:
        nodes: The nodes that go away: differences, what is computed from them, the Gather and the Transpose.
        table: The table, one row for each bucket.
        heads: The length of its rows.
        difference: The matrix of differences.
        buckets: What is computed of it: rows of the table.
        size: The number of positions.
        is_ascending: Whether the difference is larger in later columns.
        may_be_empty: Whether there may be no positions.
    """

    nodes: tuple[ir.Node, ...]
    table: ir.Value
    heads: int
    difference: ir.Value
    buckets: ir.Value
    size: ir.Value
    is_ascending: bool
    may_be_empty: bool


class RelativePositionConversion(RewriteRule[Found]):
    """``Transpose(Gather(table, f(j - i)))`` → the same of the vector of differences, copied to equal diagonals.

    For the bias by relative position that T5, MPNet and WavLM compute from ``f``, a dozen ops on integers. On ONNX
    Runtime's CPU WavLM is 1.2 times as fast for 160 positions, and 1.5 times for 1,600.

    It is exact as a transposition is: each difference goes through the ops that it went through. Where its Log lies at
    the edge of a bucket, ONNX Runtime itself gives one bucket or the other by the element's place: the last elements
    of each thread's share are computed one by one, the others many at a time, and the two may differ in the last bit.
    In the models named above they do so for no distance that is looked up.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Transpose",)
    opsets = (14, NEWEST_OPSET)  # before, no Reshape gave an empty image
    lookback = MOST_NODES
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """A table that is looked up by what pointwise ops compute of the differences of one range's elements."""
        need(attribute(root, "perm", NONE) == HEADS_FIRST, "the rows do not become columns", root)
        gather = producer(root.inputs[0], "Gather")
        table, buckets = inputs(gather, 2)
        need(rank(table) == 2 and axis(gather, 2, 0) == 0, "it is no table of rows", gather)
        heads = dims(table)[1]
        if not isinstance(heads, int) or heads == 0:
            raise Refusal("the length of a row is not known", table)
        chain = _pointwise_above(buckets)
        sub = next(node for node in chain if _difference(node))
        need(len(chain) >= FEWEST_NODES, "little is computed of the differences", gather)
        size, is_ascending = _positions(sub)
        may_be_empty = not is_never_zero(dims(sub.outputs[0], 2)[0], root)
        return Found((*chain, gather, root), table, heads, sub.outputs[0], buckets, size, is_ascending, may_be_empty)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the row of all differences, what is computed of it, and the matrix."""
        count = _op("Reshape", found.size, constant((1,)))
        last = _op("Sub", count, constant((1,)))
        made = {found.difference: _differences(found, last)}
        for node in found.nodes:
            if node.op_type in POINTWISE and node.outputs[0] is not found.difference:
                _copy(node, made)
        columns = ir.node("Transpose", [found.table], {"perm": [1, 0]}).outputs[0]
        rows = ir.node("Gather", [columns, made[found.buckets]], {"axis": 1}).outputs[0]
        return _diagonals(rows, found.heads, count, last)


def _pointwise_above(value: ir.Value) -> list[ir.Node]:
    """The pointwise ops between differences and a value, in an order in which they can be computed."""
    order: list[ir.Node] = []
    opened: set[ir.Node] = set()
    pending: list[tuple[ir.Value, bool]] = [(value, False)]
    while pending:
        current, is_done = pending.pop()
        node = current.producer()
        if node is None or not is_op(node, *POINTWISE):
            raise Refusal("it is computed of something else than differences of positions", current)
        if is_done:
            order.append(node)
        elif node not in opened:
            opened.add(node)
            need(len(opened) <= MOST_NODES, "much is computed of the differences", node)
            plain_attributes(node)
            pending.append((current, True))
            if not _difference(node):
                pending.extend((operand, False) for operand in _operands(node))
    need(sum(map(_difference, order)) == 1, "it is computed of several differences", value)
    return order


def _operands(node: ir.Node) -> list[ir.Value]:
    """What a pointwise op computes with; its constants are single numbers, which broadcast to a vector as well."""
    values = [value for value in node.inputs if value is not None]
    computed = [value for value in values if not is_constant(value)]
    need(bool(computed) and len(values) == len(node.inputs), "nothing of it is computed", node)
    need(all(_is_number(value) for value in values if is_constant(value)), "a constant is no single number", node)
    return computed


def _is_number(value: ir.Value) -> bool:
    shape = shape_of(value)
    return shape is not None and all(isinstance(dim, int) and dim == 1 for dim in shape) and len(shape) <= 1


def _difference(node: ir.Node) -> bool:
    """Whether a node subtracts two values that ops put on axes of their own."""
    return is_op(node, "Sub") and all(
        value is not None and is_op(value.producer(), "Unsqueeze") for value in node.inputs
    )


def _positions(sub: ir.Node) -> tuple[ir.Value, bool]:
    """How many positions there are, and whether the column is what another is subtracted from."""
    columns, rows = (producer(value, "Unsqueeze") for value in inputs(sub, 2))
    need(columns.inputs[0] is rows.inputs[0], "the positions are of two ranges", sub)
    axes = tuple(integers(node.inputs[1]) for node in (columns, rows))
    need(all(len(one) == 1 for one in axes), "the axes are not two", sub)
    at = tuple(one[0] % 2 for one in axes)
    need(sorted(at) == [0, 1], "the axes are not two", sub)
    span = producer(columns.inputs[0], "Range")
    first, size, step = inputs(span, 3)
    need(dtype(size) == ir.DataType.INT64, "the positions are no int64", size)
    need(is_scalar(first, 0) and is_scalar(step, 1), "the positions do not count from 0", span)
    need(static_dims(size) == (), "the number of positions is no scalar", size)
    return size, at[0] == 0


def _differences(found: Found, last: ir.Value) -> ir.Value:
    """All differences along a row of the matrix from its lower left to its upper right, and spare ones, which repeat.

    Args:
        found: What was found.
        last: The greatest difference.
    """
    first, beyond = _op("Sub", _number(1), found.size), _op("Add", found.size, _number(SPARE))
    greatest = _op("Max", last, constant((0,))) if found.may_be_empty else last
    ascending = _op("Min", _op("Range", first, beyond, _number(1)), greatest)
    return ascending if found.is_ascending else _op("Neg", ascending)


def _copy(node: ir.Node, made: dict[ir.Value, ir.Value]) -> None:
    """A pointwise op of vectors instead of matrices."""
    operands = [made.get(value, value) if value is not None else None for value in node.inputs]
    copy = ir.Node(node.domain, node.op_type, operands, list(node.attributes.values()))
    made[node.outputs[0]] = copy.outputs[0]


def _diagonals(rows: ir.Value, heads: int, count: ir.Value, last: ir.Value) -> ir.Value:
    """The matrices whose diagonals are the elements of rows.

    Args:
        rows: One row of 2·count - 1 + SPARE elements for each matrix.
        heads: How many matrices there are.
        count: Rows of a matrix, and columns.
        last: One less.
    """
    end = _op("Add", last, count)
    shorter = _op("Add", end, constant((SPARE - 1,)))
    copies = _op("Tile", rows, _joined(constant((1,)), count))
    flat = _op("Slice", copies, constant((0,)), _op("Mul", count, shorter), constant((1,)))
    target = _joined(constant((heads,)), count, shorter)
    shifted = ir.node("Reshape", [flat, target], {"allowzero": 1}).outputs[0]
    return _op("Slice", shifted, last, end, constant((2,)))


def _joined(*values: ir.Value) -> ir.Value:
    return ir.node("Concat", values, {"axis": 0}).outputs[0]


def _number(value: int) -> ir.Value:
    return constant(np.array(value, np.int64))


def _op(op: str, *operands: ir.Value) -> ir.Value:
    return ir.node(op, operands).outputs[0]

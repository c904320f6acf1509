"""What is computed of the differences of all pairs of positions: of each difference once, instead of for each pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    dtype,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    is_scalar,
    need,
    plain_attributes,
    producer,
    same_dim,
    shape_of,
    static_dims,
)

POINTWISE: Final = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less"),
        *("LessOrEqual", "Log", "Max", "Min", "Mul", "Neg", "Not", "Or", "Round", "Sign", "Sub", "Where"),
    )
)
"""Ops that give for each element what it alone says."""

MAX_NODES: Final = 40

SPARE: Final = 1
"""With as many elements behind those that count, rows are twice as long as there are positions."""

TAIL: Final = 16
"""Elements of a vector, at its end, that kernels may compute one by one; the others they compute many at a time."""

_BY_PLACE: Final = ("Log",)
"""Ops whose kernels round the last bit otherwise in the tail, where a number at the edge of a bucket changes sides."""

_SPREADING: Final = ("Reshape", "Unsqueeze")
_WRAPPING: Final = ("Reshape", "Unsqueeze", "Squeeze")


class Differences(Struct, frozen=True):
    """A matrix of pointwise ops of the differences of one range's elements.

    Attributes:
        nodes: The nodes that compute it from the range, the difference first.
        difference: The matrix of differences.
        result: What is computed of it.
        size: The number of positions, a scalar.
        is_ascending: Whether the difference is larger in later columns.
        may_be_empty: Whether there may be no positions.
    """

    nodes: tuple[ir.Node, ...]
    difference: ir.Value
    result: ir.Value
    size: ir.Value
    is_ascending: bool
    may_be_empty: bool

    def row(self, spare: int, *, ascending: bool = True, empty: bool = True) -> ir.Value:
        """What is computed of each difference, for differences that ascend, or descend, by column.

        Args:
            spare: How often the last is repeated behind it.
            ascending: Whether columns minus rows counts, or rows minus columns.
            empty: Whether it is to hold without positions, too.
        """
        last = op("Max", self.last, constant((0,))) if empty and self.may_be_empty else self.last
        made_up = max(spare, TAIL) if any(is_op(node, *_BY_PLACE) for node in self.nodes) else spare
        first, beyond = op("Sub", number(1), self.size), op("Add", self.size, number(made_up))
        distance = op("Min", op("Range", first, beyond, number(1)), last)
        made = {self.difference: distance if ascending == self.is_ascending else op("Neg", distance)}
        for node in self.nodes:
            if is_op(node, *_WRAPPING) and node.inputs[0] is not None:
                made[node.outputs[0]] = made[node.inputs[0]]
            elif node.outputs[0] is not self.difference:
                _copy(node, made)
        if made_up == spare:
            return made[self.result]
        end = op("Add", op("Add", self.count, self.count), constant((spare - 1,)))
        return op("Slice", made[self.result], constant((0,)), end)

    @property
    def count(self) -> ir.Value:
        """The number of positions, a vector."""
        return op("Reshape", self.size, constant((1,)))

    @property
    def last(self) -> ir.Value:
        """The greatest difference, a vector."""
        return op("Sub", self.count, constant((1,)))


def differences(value: ir.Value, at: ir.Node) -> Differences:
    """What a matrix is computed from, which must be the differences of one range's elements.

    Args:
        value: The matrix.
        at: Where it is asked.

    Raises:
        Refusal: If it is computed otherwise.
    """
    chain = _pointwise_above(value)
    sub = next(node for node in chain if _is_difference(node))
    size, is_ascending = _positions(sub)
    may_be_empty = not is_never_zero(dims(sub.outputs[0], 2)[0], at)
    return Differences(tuple(chain), sub.outputs[0], value, size, is_ascending, may_be_empty)


def _pointwise_above(value: ir.Value) -> list[ir.Node]:
    """The pointwise ops between differences and a value, in an order in which they can be computed."""
    order: list[ir.Node] = []
    opened: set[ir.Node] = set()
    pending: list[tuple[ir.Value, bool]] = [(value, False)]
    while pending:
        current, is_done = pending.pop()
        node = current.producer()
        if node is None or not (is_op(node, *POINTWISE) or _keeps_matrix(node)):
            raise Refusal("it is computed of something else than differences of positions", current)
        if is_done:
            order.append(node)
        elif node not in opened:
            opened.add(node)
            need(len(opened) <= MAX_NODES, "much is computed of the differences", node)
            if is_op(node, *POINTWISE):
                plain_attributes(node)
            pending.append((current, True))
            if not _is_difference(node):
                pending.extend((operand, False) for operand in _operands(node))
    need(sum(map(_is_difference, order)) == 1, "it is computed of several differences", value)
    return order


def _operands(node: ir.Node) -> list[ir.Value]:
    """What a pointwise op computes with; its constants are single numbers, which broadcast to a vector as well."""
    if is_op(node, *_WRAPPING):
        return list(inputs(node, 1))
    values = [value for value in node.inputs if value is not None]
    computed = [value for value in values if not is_constant(value)]
    need(bool(computed) and len(values) == len(node.inputs), "nothing of it is computed", node)
    need(all(_is_number(value) for value in values if is_constant(value)), "a constant is no single number", node)
    return computed


def _keeps_matrix(node: ir.Node) -> bool:
    """Whether a node adds or removes axes of size 1 before a matrix."""
    if not is_op(node, *_WRAPPING) or node.inputs[0] is None:
        return False
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    return before is not None and after is not None and is_matrix_of(before, after)


def is_matrix_of(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes are of the same matrix, with axes of size 1 before it."""
    ones = all(isinstance(dim, int) and dim == 1 for dim in (*a[:-2], *b[:-2]))
    return min(len(a), len(b)) > 1 and ones and same_dim(a[-2], b[-2]) and same_dim(a[-1], b[-1])


def _is_number(value: ir.Value) -> bool:
    shape = shape_of(value)
    return shape is not None and all(isinstance(dim, int) and dim == 1 for dim in shape) and len(shape) <= 1


def _is_difference(node: ir.Node) -> bool:
    """Whether a node subtracts two values that ops put on axes of their own, or broadcasting puts there."""
    return is_op(node, "Sub") and all(
        value is not None and is_op(value.producer(), *_SPREADING, "Range") for value in node.inputs
    )


def _positions(sub: ir.Node) -> tuple[ir.Value, bool]:
    """How many positions there are, and whether the column is what another is subtracted from."""
    (columns, column_axis), (rows, row_axis) = (_spread(value) for value in inputs(sub, 2))
    need(columns is rows, "the positions are of two ranges", sub)
    need({column_axis, row_axis} == {0, 1}, "the axes are not two", sub)
    span = producer(columns, "Range")
    first, size, step = inputs(span, 3)
    need(dtype(size) == ir.DataType.INT64, "the positions are no int64", size)
    need(is_scalar(first, 0) and is_scalar(step, 1), "the positions do not count from 0", span)
    need(static_dims(size) == (), "the number of positions is no scalar", size)
    return size, column_axis == 0


def _spread(value: ir.Value) -> tuple[ir.Value | None, int]:
    """The vector behind a matrix with one row or column, and the axis of size 1; of a vector it is the first."""
    node = producer(value, *_SPREADING, "Range")
    return (value, 0) if is_op(node, "Range") else (node.inputs[0], _unit_axis(node))


def _unit_axis(node: ir.Node) -> int:
    """The axis of a matrix with one row or column that is no axis of the vector that it is made of."""
    shape = dims(node.outputs[0])
    units = [place for place, dim in enumerate(shape) if isinstance(dim, int) and dim == 1]
    need(len(shape) == 2 and len(units) == 1, "the axes are not two", node)
    return units[0]


def _copy(node: ir.Node, made: dict[ir.Value, ir.Value]) -> None:
    """A pointwise op of vectors instead of matrices."""
    operands = [made.get(value, value) if value is not None else None for value in node.inputs]
    copy = ops.copied(node, operands)
    made[node.outputs[0]] = copy.outputs[0]


def diagonals(product: ir.Value, leading: Sequence[ir.Value], axes: int, of: Differences, *, empty: bool) -> ir.Value:
    """What each row of a product has of the columns of its distances to each position.

    Rows of `length` + 1 elements one behind the other, cut into rows of `length`, shift by one from row to row.

    Args:
        product: Rows of a number for each difference, in the order of columns, and `SPARE` more.
        leading: The sizes of the axes before the rows, vectors.
        axes: How many axes these are.
        of: The differences.
        empty: Whether it is to hold without positions, too.
    """
    count, last = of.count, of.last
    length = op("Add", last, count)
    if empty and of.may_be_empty:
        length = op("Max", length, constant((0,)))
    flat = reshaped(product, *leading, op("Mul", count, op("Add", count, count)))
    used = op("Slice", flat, last, op("Add", last, op("Mul", count, length)), constant((axes,)))
    return op("Slice", reshaped(used, *leading, count, length), constant((0,)), count, constant((axes + 1,)))


def reshaped(value: ir.Value, *shape: ir.Value) -> ir.Value:
    """A value in a shape that vectors make up, in which a 0 is one."""
    return ir.node("Reshape", [value, joined(*shape)], {"allowzero": 1}).outputs[0]


def joined(*values: ir.Value) -> ir.Value:
    """Vectors one behind the other."""
    return ir.node("Concat", values, {"axis": 0}).outputs[0]


def number(value: int) -> ir.Value:
    """A scalar."""
    return constant(np.array(value, np.int64))


def op(name: str, *operands: ir.Value) -> ir.Value:
    """What an op without attributes gives."""
    return ir.node(name, operands).outputs[0]

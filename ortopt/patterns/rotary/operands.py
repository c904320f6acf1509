"""The operands of RotaryEmbedding in the layout that its kernel reads, and the way back from its result."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant, discard
from ortopt.graph.match import Dim, dims, is_op, same_dim, shape_of
from ortopt.patterns.attention.heads import HEADS_FIRST
from ortopt.patterns.rotary.block import Rotary, is_row
from ortopt.patterns.rotary.lanes import outer
from ortopt.patterns.rotary.layout import Order
from ortopt.patterns.rotary.tables import Table, cut, taken


def table_of(found: Rotary, table: Table, version: int) -> ir.Value:
    """The angles of each pair of a head: [batch, positions, pairs], or [positions, pairs] where they are shared.

    Args:
        found: The embedding.
        table: Its cosines or sines.
        version: The opset of ai.onnx where the nodes will stand.
    """
    value = cut(table)
    if not found.layout.varying:
        return ir.node("Reshape", [value, constant([1, len(table.lanes)])]).outputs[0]
    own = len(outer(*table.source))
    ahead = len(found.layout.around) - own
    single = [place for place in range(own) if place + ahead not in found.layout.varying]
    return _squeezed(value, single, own + 1, version)


def _squeezed(value: ir.Value, axes: list[int], rank: int, version: int) -> ir.Value:
    """A value without some of its dimensions of size 1; where they were just put in, what it was before."""
    while axes:
        node = value.producer()
        new = ops.Unsqueeze(node).axes_of(rank) if node is not None and is_op(node, "Unsqueeze") else ()
        if node is None or not new or not set(new) <= set(axes):
            break
        (source,) = node.inputs[:1]
        assert source is not None
        if node.graph is None and not node.outputs[0].uses():
            discard([node])  # it was built, and is needed no more: it must not count as a user
        left = [place for place in range(rank) if place not in new]
        value, axes, rank = source, [left.index(place) for place in axes if place in left], len(left)
    return ops.squeezed(value, axes, version) if axes else value


def for_each_sequence(found: Rotary, table: ir.Value, turned: ir.Value) -> ir.Value:
    """One table for all sequences, [positions, pairs], repeated for each: [batch, positions, pairs].

    Args:
        found: The embedding.
        table: The table.
        turned: What RotaryEmbedding turns.
    """
    batch = 1 if found.layout.order is Order.POSITIONS_FIRST else found.layout.around[0]
    if isinstance(batch, int):
        return ir.node("Expand", [table, constant([batch, 1, 1])]).outputs[0]
    size = ir.node("Shape", [turned], {"start": 0, "end": 1}).outputs[0]
    shape = ir.node("Concat", [size, constant([1, 1])], {"axis": 0}).outputs[0]
    return ir.node("Expand", [table, shape]).outputs[0]


class Rows(NamedTuple):
    """Tables of all sequences as rows of one, and the row of each position.

    Attributes:
        positions: The rows, [batch, positions].
        tables: The cosines and the sines, [rows, pairs].
    """

    positions: ir.Value
    tables: list[ir.Value]


def rows_of(tables: list[ir.Value], pairs: int, dtype: ir.DataType) -> Rows:
    """Tables for each sequence in the form that an op with one table for all reads, from opset 14 on.

    Rows of zeros follow, one for each position: ONNX Runtime's kernel refuses tables of fewer rows, as they are where
    the batch is empty.

    Args:
        tables: The cosines and the sines, [batch, positions, pairs].
        pairs: How many pairs there are.
        dtype: The element type of the tables.
    """
    shape = ir.node("Shape", [tables[0]]).outputs[0]
    sequences, row = (ir.node("Gather", [shape, constant(which)]).outputs[0] for which in ([0, 1], [1, 2]))
    count = ir.node("ReduceProd", [sequences], {"keepdims": 0}).outputs[0]
    numbers = ir.node("Range", [constant(0), count, constant(1)]).outputs[0]
    positions = ir.node("Reshape", [numbers, sequences], {"allowzero": 1}).outputs[0]
    zero = ir.Tensor(np.zeros(1, dtype.numpy()), dtype=dtype)
    spare = ir.node("ConstantOfShape", [row], {"value": zero}).outputs[0]
    flat = [_reshaped(table, [-1, pairs]) for table in tables]
    return Rows(positions, [ir.node("Concat", [table, spare], {"axis": 0}).outputs[0] for table in flat])


class Operand(Struct, frozen=True):
    """What RotaryEmbedding turns.

    Attributes:
        value: The value, [batch, positions, heads · size] or [batch, heads, positions, size].
        side_by_side: Whether heads are side by side, as they are in the first of both.
    """

    value: ir.Value
    side_by_side: bool


def operand(found: Rotary) -> Operand:
    """The heads of an embedding: side by side, if they are or were before a Transpose, else as they are."""
    layout = found.layout
    width = layout.head_count * found.size
    if layout.order is Order.HEADS_FIRST:
        rows = _rows(found) if found.is_whole else None
        if rows is not None:
            return Operand(_side_by_side(rows, (layout.around[0], layout.around[2]), width), True)
        return Operand(_heads(found), False)
    if layout.order is Order.POSITIONS_FIRST:
        return Operand(_reshaped(_heads(found), [1, -1, width]), True)
    if found.is_whole:
        return Operand(_side_by_side(found.x.value, layout.around[:2], width), True)
    heads = _heads(found)
    return Operand(_reshaped(heads, [0, 0, width]) if layout.heads else heads, True)


def restored(found: Rotary, embedded: ir.Value, turned: Operand) -> ir.Value:
    """The result of RotaryEmbedding in the dimensions of the embedding's.

    Args:
        found: The embedding.
        embedded: What RotaryEmbedding gives.
        turned: What it was given.
    """
    layout = found.layout
    heads = [dim for dim in layout.heads if isinstance(dim, int)]
    head = list(found.head)
    if layout.order is Order.POSITIONS_FIRST:
        return _reshaped(embedded, [-1, *heads, *head])
    if layout.order is Order.HEADS_LAST:
        return embedded if not heads and len(head) == 1 else _reshaped(embedded, [0, 0, *heads, *head])
    if turned.side_by_side:
        rows = _reshaped(embedded, [0, 0, *heads, found.size])
        embedded = ir.node("Transpose", [rows], {"perm": HEADS_FIRST}).outputs[0]
    return embedded if len(head) == 1 else _reshaped(embedded, [0, 0, 0, *head])


def _heads(found: Rotary) -> ir.Value:
    """What is turned, with a head as the last dimension."""
    if is_row(found.own):
        return taken(found.x, list(found.own))
    start, size = found.own[0], found.size  # pairs: a Gather that takes single elements is slower than a Transpose
    value = taken(found.x, list(range(start, start + size)))
    around = len(found.layout.around)
    pairs = _reshaped(value, [0] * around + [size // 2, 2])
    halves = ir.node("Transpose", [pairs], {"perm": [*range(around), around + 1, around]}).outputs[0]
    return _reshaped(halves, [0] * around + [size])


def _rows(found: Rotary) -> ir.Value | None:
    """What a Transpose made of [batch, positions, heads, …] the heads that stand first; None if there is none."""
    node = found.x.value.producer()
    if not is_op(node, "Transpose"):
        return None
    assert node is not None
    return node.inputs[0] if ops.Transpose(node).order == (*HEADS_FIRST[:3], *range(3, 3 + found.x.rank)) else None


def _side_by_side(value: ir.Value, ahead: tuple[Dim, ...], width: int) -> ir.Value:
    """The value as [batch, positions, width]: what a Reshape made it of, where that has these dimensions."""
    if len(dims(value)) == 3 and dims(value)[2] == width:
        return value
    node = value.producer()
    if is_op(node, "Reshape"):
        assert node is not None
        source = node.inputs[0]
        assert source is not None
        shape = shape_of(source)
        if shape is not None and len(shape) == 3 and all(map(same_dim, shape, (*ahead, width))):
            return source
    return _reshaped(value, [0, 0, width])


def _reshaped(value: ir.Value, shape: list[int]) -> ir.Value:
    return ir.node("Reshape", [value, constant(shape)]).outputs[0]


__all__ = ["Operand", "Rows", "for_each_sequence", "operand", "restored", "rows_of", "table_of"]

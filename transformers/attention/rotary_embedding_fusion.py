"""A rotary position embedding becomes one kernel, which reads heads where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.edit import constant, discard
from ortopt.graph.match import Dim, Refusal, dims, dtype, inputs, is_op, need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.rotary.block import ROOTS, STANDARD_FROM, Rotary, is_row, rotary, wants_standard_op
from ortopt.patterns.rotary.lanes import inner, outer
from ortopt.patterns.rotary.layout import Order
from ortopt.patterns.rotary.tables import Table, cut, taken
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.views.index_map import IndexMap, identity_of, reordered, reshaped, same
from ortopt.views.reading import maps

HEADS_FIRST = (0, 2, 1, 3)
"""The permutation between [batch, positions, heads, size] and [batch, heads, positions, size], both ways."""

RANK_OF_ROWS = 3
"""The rank of heads that are side by side."""

ROWS_FROM = 14
"""The version of ai.onnx that can say which rows of one table are whose, where sequences have tables of their own."""


class Operand(NamedTuple):
    """What RotaryEmbedding turns.

    Attributes:
        value: The value, [batch, positions, heads · size] or [batch, heads, positions, size].
        side_by_side: Whether heads are side by side, as they are in the first of both.
    """

    value: ir.Value
    side_by_side: bool


class RotaryEmbeddingFusion(RewriteRule[Rotary]):
    """``x · cos + Concat(-x₂, x₁) · sin``, the halves of x being x₁ and x₂ → ``RotaryEmbedding(x, cos, sin)``.

    Pairs may be neighbours too, and only the first elements of a head may be turned. The standard operator has tables
    for each sequence of the batch; ONNX Runtime's own has one for all, in which each sequence may have rows of its own.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("opset_conversion", "constant_folding", "norm_transpose_reordering")
    roots = ROOTS
    lookback = 10
    looks_downstream = True
    produces = ((MICROSOFT, "RotaryEmbedding"),)
    fuses = (("", "RotaryEmbedding"), *produces)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Rotary:
        """The embedding, if there is an op for it."""
        embedding = rotary(root)
        have = opset(root)
        need(embedding.shared or have >= ROWS_FROM, f"opset {have} has no RotaryEmbedding", root)
        return embedding

    def rewrite(self, found: Rotary) -> dict[ir.Value, ir.Value]:
        """Build the embedding: of heads side by side where there are such ones."""
        version = opset(found.nodes[0])
        tables = [_table_of(found, table, version) for table in (found.cosines, found.sines)]
        x = _operand(found)
        y = _restored(found, _embedded(found, x, tables), x)
        return {found.y: ir.node("Concat", [*found.lead, y], {"axis": -1}).outputs[0] if found.lead else y}


def _embedded(found: Rotary, operand: Operand, tables: list[ir.Value]) -> ir.Value:
    x, partial, attributes = operand.value, found.turned < found.size, {}
    if operand.side_by_side or partial:
        attributes["num_heads"] = found.layout.head_count
    if partial:
        attributes["rotary_embedding_dim"] = found.turned
    if found.interleaved:
        attributes["interleaved"] = 1
    if wants_standard_op(found) and opset(found.nodes[0]) >= STANDARD_FROM:
        if found.shared:
            tables = [_for_each_sequence(found, table, x) for table in tables]
        return ir.node("RotaryEmbedding", [x, *tables], attributes).outputs[0]
    positions = constant([0])  # of the first element, in each sequence
    if not found.shared:
        positions, tables = _rows_of(tables, found.turned // 2, dtype(found.y))
    return ir.node("RotaryEmbedding", [x, positions, *tables], attributes, domain=MICROSOFT).outputs[0]


def _table_of(found: Rotary, table: Table, version: int) -> ir.Value:
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
        new = ops.Unsqueeze(node).axes_of(rank) if is_op(node, "Unsqueeze") else ()
        if node is None or not new or not set(new) <= set(axes):
            break
        (source,) = inputs(node, 1)
        if node.graph is None and not node.outputs[0].uses():
            discard([node])  # it was built, and is needed no more: it must not count as a user
        left = [place for place in range(rank) if place not in new]
        value, axes, rank = source, [left.index(place) for place in axes if place in left], len(left)
    return ops.squeezed(value, axes, version) if axes else value


def _for_each_sequence(found: Rotary, table: ir.Value, turned: ir.Value) -> ir.Value:
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


def _rows_of(tables: list[ir.Value], pairs: int, dtype: ir.DataType) -> tuple[ir.Value, list[ir.Value]]:
    """Tables for each sequence in the form that an op with one table for all reads, from opset 14 on.

    Rows of zeros follow, one for each position: ONNX Runtime's kernel refuses tables of fewer rows, as they are where
    the batch is empty.

    Args:
        tables: The cosines and the sines, [batch, positions, pairs].
        pairs: How many pairs there are.
        dtype: The element type of the tables.

    Returns:
        The row of each position, [batch, positions], and the tables, [rows, pairs].
    """
    shape = ir.node("Shape", [tables[0]]).outputs[0]
    sequences, row = (ir.node("Gather", [shape, constant(which)]).outputs[0] for which in ([0, 1], [1, 2]))
    count = ir.node("ReduceProd", [sequences], {"keepdims": 0}).outputs[0]
    numbers = ir.node("Range", [constant(0), count, constant(1)]).outputs[0]
    positions = ir.node("Reshape", [numbers, sequences], {"allowzero": 1}).outputs[0]
    zero = ir.Tensor(np.zeros(1, dtype.numpy()), dtype=dtype)
    spare = ir.node("ConstantOfShape", [row], {"value": zero}).outputs[0]
    flat = [_reshaped(table, [-1, pairs]) for table in tables]
    return positions, [ir.node("Concat", [table, spare], {"axis": 0}).outputs[0] for table in flat]


def _operand(found: Rotary) -> Operand:
    """The heads of an embedding: side by side, if they are or were before they were moved, else as they are."""
    layout = found.layout
    rows = _side_by_side(found) if found.is_whole and layout.order is not Order.POSITIONS_FIRST else None
    if rows is not None:
        return Operand(rows, True)
    heads = _heads(found)
    if layout.order is Order.HEADS_FIRST:
        return Operand(heads, False)
    ahead = [1, -1] if layout.order is Order.POSITIONS_FIRST else [0, 0]
    apart = layout.heads or layout.order is Order.POSITIONS_FIRST
    return Operand(_reshaped(heads, [*ahead, layout.head_count * found.size]) if apart else heads, True)


def _side_by_side(found: Rotary) -> ir.Value | None:
    """The value as [batch, positions, heads · size]: one that it was before its heads were moved, if there is one."""
    layout = found.layout
    is_first = layout.order is Order.HEADS_FIRST
    ahead = (layout.around[0], layout.around[2 if is_first else 1])
    rows, width = (*ahead, *layout.heads, *inner(*found.x)), layout.head_count * found.size
    order = (*HEADS_FIRST[:3], *range(3, len(rows))) if is_first else range(len(rows))
    sources = [
        one.source
        for one in maps(found.x.value)
        if symbolic.same_shape((*one.shape[:2], symbolic.product(one.shape[2:])), (*ahead, width))
        and _is_of_rows(one, rows, order)
    ]
    flat = next((source for source in sources if len(dims(source)) == RANK_OF_ROWS), None)
    return flat if flat is not None or not sources else _reshaped(sources[0], [0, 0, width])


def _is_of_rows(found: IndexMap, rows: Sequence[Dim], order: Sequence[int]) -> bool:
    """Whether a value is its source in some dimensions, and these in another order."""
    try:
        return same(found, reordered(reshaped(identity_of(found), rows), order))
    except Refusal:  # it is not proven that the dimensions fit
        return False


def _restored(found: Rotary, embedded: ir.Value, turned: Operand) -> ir.Value:
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


def _reshaped(value: ir.Value, shape: list[int]) -> ir.Value:
    return ir.node("Reshape", [value, constant(shape)]).outputs[0]

"""Tables of cosines and sines: which of their lanes are alike, and how to have some of them without the others."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    Refusal,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    need,
    plain_attributes,
    same_dim,
    small_array,
)
from ortopt.graph.walk import Answers, Question, walk
from ortopt.patterns.rotary.lanes import LANE, MAX_VALUES, SIGN, SOURCE, Source, Tracer, inner, is_plain

Key: TypeAlias = tuple[int, int]
"""A sign, and a number that stands for the same elements wherever it is the same."""

Wanted: TypeAlias = tuple[ir.Value, int, tuple[int, ...]]
"""A value, how many of its last dimensions are lanes, and the lanes to take, counted over all of these dimensions."""

LARGE: Final = 1 << 18
"""Constants with more elements are cut where they are read, and not written again."""

SAMPLES: Final = 64
MAX_PARTS: Final = 8

_ELEMENTWISE: Final = {"Add": 2, "Cast": 1, "Cos": 1, "Div": 2, "Mul": 2, "Sin": 1, "Sub": 2, "Where": 3}
_ODD: Final = frozenset({"Cast", "Div", "Mul", "Sin"})
"""Of these, those whose result has the sign of the operands' product, if it is a floating-point number."""


class Table(Struct, frozen=True):
    """Some lanes of a value, or their negatives.

    Attributes:
        source: The value, and how many of its last dimensions are lanes.
        lanes: The lanes, in order, counted over all of these dimensions.
        sign: 1, or -1 for their negatives.
    """

    source: Source
    lanes: tuple[int, ...]
    sign: int


class Comparison:
    """Knows which lanes of tables hold the same numbers; what it has found out it remembers."""

    def __init__(self) -> None:
        self._tracer = Tracer()
        self._keys: Answers[Source, list[Key]] = Answers()
        self._numbers: dict[Hashable, int] = {}

    def key(self, source: Source, lane: int) -> Key:
        """What stands for the numbers of a lane.

        Args:
            source: A value, and how many of its last dimensions are lanes.
            lane: The lane, counted over all of these dimensions.
        """
        too_many = Refusal("too many nodes compute a table", source.value)
        return walk(self._found, source, unknown=too_many, most=MAX_VALUES, answers=self._keys)[lane]

    def _found(self, source: Source) -> Question[Source, list[Key]]:
        lanes = self._tracer.lanes(*source)
        if not is_plain(lanes):
            return self._opaque(source)
        signs, numbers, places = (lanes[0, row].reshape(-1).tolist() for row in (SIGN, SOURCE, LANE))
        below: dict[int, list[Key]] = {}
        for number in set(numbers):
            at = self._tracer.sources[number]
            try:
                below[number] = (yield from self._by_node(source)) if at == source else (yield at)
            except Refusal:
                below[number] = self._opaque(at)
        keys = [below[number][place] for number, place in zip(numbers, places, strict=True)]
        return [(sign * own, key) for sign, (own, key) in zip(signs, keys, strict=True)]

    def _by_node(self, source: Source) -> Question[Source, list[Key]]:
        """The keys of a value that comes from no node that only moves elements."""
        value, rank = source
        if is_constant(value):
            return [(sign, self._number((source, lane))) for sign, lane in _columns(source)]
        node = value.producer()
        if node is None or node.domain:
            return self._opaque(source)
        if node.op_type in _ELEMENTWISE:
            return (yield from self._elementwise(node, source))
        how, data = _across(node, rank)
        below = Source(data, _rank_before(node, data, rank))
        what = self._number(how)
        return [(sign, self._number((what, key))) for sign, key in (yield below)]

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def _opaque(self, source: Source) -> list[Key]:
        """Keys that are alike for the same lane of the same value only."""
        return [(1, self._number((source, lane))) for lane in range(math.prod(inner(*source)))]

    def _elementwise(self, node: ir.Node, source: Source) -> Question[Source, list[Key]]:
        operands = inputs(node, _ELEMENTWISE[node.op_type])
        columns = []
        for operand in operands:
            keys = yield Source(operand, source.rank)
            columns.append([keys[lane] for lane in _broadcast(operand, source)])
        what = self._number((node.op_type, *_attributes(node)))
        if node.op_type == "Cos":
            return [(1, self._number((what, key))) for ((_, key),) in zip(*columns, strict=True)]
        if node.op_type in _ODD and dtype(source.value) in FLOATS:
            return [
                (math.prod(sign for sign, _ in keys), self._number((what, *(key for _, key in keys))))
                for keys in zip(*columns, strict=True)
            ]
        return [(1, self._number((what, keys))) for keys in zip(*columns, strict=True)]


def _attributes(node: ir.Node) -> tuple[Hashable, ...]:
    entries = plain_attributes(node)
    return tuple((name, repr(entries[name].value)) for name in sorted(entries))


def _columns(source: Source) -> list[tuple[int, int]]:
    """For each lane of a constant the first one with the same numbers, or their negatives, and the sign."""
    count = math.prod(inner(*source))
    columns = array_of(source.value).reshape(-1, count)
    need(columns.dtype != object, "it is no table of numbers", source.value)
    step = max(1, len(columns) // SAMPLES)
    first: dict[bytes, list[int]] = {}
    result = []
    for lane in range(count):
        candidates = first.setdefault(np.abs(columns[::step, lane]).tobytes(), [])
        sign, representative = _alike(columns, candidates, lane)
        if representative == lane:
            candidates.append(lane)
        result.append((sign, representative))
    return result


def _alike(columns: np.ndarray, candidates: Sequence[int], lane: int) -> tuple[int, int]:
    """The candidate whose numbers a lane has, and the sign; the lane itself if there is none."""
    for candidate in candidates:
        for sign in (1, -1) if columns.dtype.kind == "f" else (1,):
            if np.array_equal(columns[:, lane], sign * columns[:, candidate]):
                return sign, candidate
    return 1, lane


def _broadcast(operand: ir.Value, source: Source) -> list[int]:
    """The lane of an operand that each lane of the result is computed from."""
    own, whole = inner(operand, source.rank), inner(*source)
    need(all(a in {1, b} for a, b in zip(own, whole, strict=True)), "the lanes are broadcast", operand)
    lanes = np.arange(math.prod(own)).reshape(own)
    result: list[int] = np.broadcast_to(lanes, whole).reshape(-1).tolist()
    return result


def _across(node: ir.Node, rank: int) -> tuple[Hashable, ir.Value]:
    """What a node does that treats all lanes alike, and the operand that it does it to.

    Raises:
        Refusal: If it does not.
    """
    result = node.outputs[0]
    (data,) = inputs(node, 1)
    around = len(dims(data)) - rank
    if node.op_type == "Unsqueeze":
        new = ops.Unsqueeze(node).axes
        need(new[-1] < len(dims(result)) - rank, "the lanes are others", node)
        return ("Unsqueeze", new), data
    if node.op_type == "Squeeze":
        gone = ops.Squeeze(node).axes
        need(gone[-1] < around, "the lanes are others", node)
        return ("Squeeze", gone), data
    if node.op_type == "Gather":
        along = ops.Gather(node).axis
        need(along < around, "the lanes are others", node)
        part = _stacked_part(node, data, along)
        if part is not None:
            return ("Squeeze", (along,)), part
        return ("Gather", along, node.inputs[1]), data
    if node.op_type == "Slice":
        need(all(cut.axis < around for cut in ops.Slice(node).cuts), "the lanes are others", node)
        return ("Slice", *node.inputs[1:], *_attributes(node)), data
    if node.op_type == "Transpose":
        perm = ops.Transpose(node).order
        need(perm[around:] == tuple(range(around, around + rank)), "the lanes are others", node)
        return ("Transpose", perm), data
    if node.op_type == "Reshape":
        return ("Reshape", node.inputs[1]), data
    if node.op_type == "MatMul":
        left, right = inputs(node, 2)
        need(rank == 1 and len(dims(right)) >= 2 and len(dims(left)) >= 2, "the lanes are others", node)
        return ("MatMul", left), right
    raise Refusal("the lanes are others", node)


def _rank_before(node: ir.Node, data: ir.Value, rank: int) -> int:
    """How many last dimensions of an operand are the lanes of a result: a Reshape may have put them together.

    Args:
        node: What treats all lanes alike.
        data: Its operand.
        rank: How many last dimensions of its result are lanes.

    Raises:
        Refusal: If the lanes are none of the operand's.
    """
    lanes = inner(node.outputs[0], rank)
    if node.op_type != "Reshape":
        need(inner(data, rank) == lanes, "the lanes are others", node)
        return rank
    count = math.prod(lanes)
    for within in range(1, len(dims(data)) + 1):
        if math.prod(inner(data, within)) >= count:
            need(math.prod(inner(data, within)) == count, "the lanes are others", node)
            return within
    raise Refusal("the lanes are others", node)


def _stacked_part(node: ir.Node, data: ir.Value, along: int) -> ir.Value | None:
    """The one of several values, each of size 1 along the axis that they are stacked on, that a Gather takes."""
    stack = data.producer()
    if not is_op(stack, "Concat") or not is_constant(node.inputs[1]):
        return None
    parts = inputs(stack, len(stack.inputs))
    chosen = small_array(node.inputs[1])
    single = ops.Concat(stack).axis == along and all(same_dim(dims(part)[along], 1) for part in parts)
    return parts[int(chosen)] if single and chosen.ndim == 0 and -len(parts) <= chosen < len(parts) else None


def cut(table: Table) -> ir.Value:
    """Some lanes of a value side by side along the last dimension, computed without the others where that can be.

    Args:
        table: The lanes.

    Returns:
        A value, new or not, with as many dimensions in front as the table's, and the lanes as its last.
    """
    too_many = Refusal("too many nodes compute the table", table.source.value)
    value = walk(partial(_cut, Tracer()), (*table.source, table.lanes), unknown=too_many, most=MAX_VALUES)
    return value if table.sign == 1 else ir.node("Neg", [value]).outputs[0]


def _cut(tracer: Tracer, wanted: Wanted) -> Question[Wanted, ir.Value]:
    """Go to where the lanes come from; take them out of the value itself where that is no few places."""
    source, lanes = Source(*wanted[:2]), list(wanted[2])
    if source.rank == 1 and lanes == list(range(math.prod(inner(*source)))):
        return source.value
    try:
        known = tracer.lanes(*source)
        need(is_plain(known), "a lane is computed", source.value)
        signs, numbers, places = (known[0, row].reshape(-1)[lanes].tolist() for row in (SIGN, SOURCE, LANE))
        parts = [list(group) for _, group in groupby(range(len(lanes)), lambda at: (signs[at], numbers[at]))]
        need(len(parts) <= MAX_PARTS, "the lanes are of many values", source.value)
        cuts = []
        for part in parts:
            origin = tracer.sources[numbers[part[0]]]
            piece = yield from _cut_computed(origin, [places[at] for at in part])
            cuts.append(piece if signs[part[0]] == 1 else ir.node("Neg", [piece]).outputs[0])
    except Refusal:
        return taken(source, lanes)
    return cuts[0] if len(cuts) == 1 else ir.node("Concat", cuts, {"axis": -1}).outputs[0]


def _cut_computed(source: Source, lanes: list[int]) -> Question[Wanted, ir.Value]:
    """Cut a value that comes from no node that only moves elements: cut what it is computed from."""
    value, rank = source
    if rank == 1 and lanes == list(range(math.prod(inner(*source)))):
        return value
    if is_constant(value):
        return _constant(source, lanes)
    node = value.producer()
    if node is None or node.domain or rank != 1:
        return taken(source, lanes)
    try:
        if node.op_type in _ELEMENTWISE:
            operands = list(inputs(node, _ELEMENTWISE[node.op_type]))
            for place, operand in enumerate(operands):
                if inner(operand, source.rank) != (1,):  # else it has one lane for all
                    operands[place] = yield operand, source.rank, tuple(lanes)
            return _again(node, operands)
        need(node.op_type != "Reshape", "the shape would be another", node)
        _, data = _across(node, rank)
        need(not (is_constant(data) and _size(data) > LARGE), "the constant is large", data)
        piece = yield data, rank, tuple(lanes)
    except Refusal:
        return taken(source, lanes)
    if data not in node.inputs:  # it is one of several stacked values
        return ir.node("Gather", [piece, constant(0)], {"axis": ops.Gather(node).stated_axis}).outputs[0]
    return _again(node, [piece if operand is data else operand for operand in node.inputs])


def _again(node: ir.Node, operands: Sequence[ir.Value | None]) -> ir.Value:
    """What a node computes of other operands."""
    return ops.copied(node, operands).outputs[0]


def _size(value: ir.Value) -> int:
    return int(array_of(value).size)


def _constant(source: Source, lanes: list[int]) -> ir.Value:
    if _size(source.value) > LARGE:
        return taken(source, lanes)
    content = array_of(source.value)
    shape = content.shape[: max(content.ndim - source.rank, 0)]
    columns = content.reshape(*shape, math.prod(inner(*source)))
    return constant(np.ascontiguousarray(columns[..., lanes]))


def taken(source: Source, lanes: list[int]) -> ir.Value:
    """Some lanes of a value, taken out of it where it is.

    Args:
        source: The value, and how many of its last dimensions are lanes.
        lanes: The lanes, in order, counted over all of these dimensions.

    Returns:
        A value, new or not, with the lanes as its last dimension.
    """
    value, rank = source
    if rank != 1:
        around = len(dims(value)) - rank
        value = ir.node("Reshape", [value, constant([0] * around + [math.prod(inner(*source))])]).outputs[0]
    if lanes == list(range(math.prod(inner(*source)))):
        return value
    steps = set(np.diff(lanes).tolist()) or {1}
    if len(steps) == 1 and min(steps) > 0:
        bounds = ([lanes[0]], [lanes[-1] + 1], [-1], [steps.pop()])
        return ir.node("Slice", [value, *map(constant, bounds)]).outputs[0]
    return ir.node("Gather", [value, constant(lanes)], {"axis": -1}).outputs[0]

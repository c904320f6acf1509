"""Windows that a Gather copies number by number, and a few Slices in long runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Refusal,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    is_used_once,
    need,
    need_fixed,
    need_float32,
    operand_constant,
    opset,
    producer,
    rank,
    scalar,
    small_array,
    static_dims,
    users,
)
from ortopt.options import MEASURED_TARGETS
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule

SLIDING_RUNS = Form("", "Slice", "for each offset")


class SlidingGatherDecomposition(CpuRule[Match]):
    """``Gather(x, range + offsets)`` → ``Concat(Slice(x), …)`` with a Slice for each offset, as ConvBERT needs.

    A window that slides along a signal of any length is taken by a few Slices, each a long run of numbers.

    ``unfold`` with a length that only the call knows (span-based attention, convolutions with computed kernels) is
    exported as a Gather whose indices are a range of positions plus a column of offsets within the window: it copies
    number by number.
    """

    targets = MEASURED_TARGETS
    roots = ("Gather",)
    opsets = (11, NEWEST_OPSET)  # the first with Range
    lookback = 3
    weighs = (SLIDING_RUNS,)

    def match(self, root: ir.Node) -> Match:
        """A range that counts from 0, and a column of offsets; single numbers are taken."""
        x, indices = inputs(root, 2)
        need_float32(x, MEASURED)
        place = ops.Gather(root).axis
        alone = all(isinstance(size, int) and size == 1 for size in dims(x)[place + 1 :])
        need(alone, "it takes rows, which are copied as they are", root)
        column, row = operand_constant(producer(indices, "Add"))
        rows, width = static_dims(column, 2)
        need(width == 1 and rows > 1, "the offsets are no column", column)
        check_faster(root, SLIDING_RUNS, parts=rows)
        offsets = tuple(map(int, small_array(column).reshape(-1)))
        need(min(offsets) >= 0, "an offset is negative", column)
        size, step = _range(row)
        return Match((root,), lambda: _window(root, offsets, size, step))


def _window(root: ir.Node, offsets: Sequence[int], size: ir.Value, step: int) -> ir.Value:
    """Take the numbers at each offset, and put them side by side.

    Args:
        root: The Gather.
        offsets: Where the numbers of the window are.
        size: One more than the last place of the window may be, a scalar.
        step: How far it moves at a time.
    """
    place = ops.Gather(root).axis
    x = ops.unsqueezed(inputs(root, 1)[0], [place], opset(root))
    end = ir.node("Reshape", [size, constant([1])]).outputs[0]
    runs = [_run(x, place + 1, offset, end, step) for offset in offsets]
    return ir.node("Concat", runs, {"axis": place}).outputs[0]


def _range(row: ir.Value) -> tuple[ir.Value, int]:
    """Where a range that is one row of a matrix, or is broadcast to its rows, ends, and its step.

    Raises:
        Refusal: If it is none, or does not count upwards from 0.
    """
    span = producer(row, "Range", "Unsqueeze", "Reshape")
    if not is_op(span, "Range"):
        shape = dims(row, 2)
        need(isinstance(shape[0], int) and shape[0] == 1, "the range is no row", row)
        span = producer(span.inputs[0], "Range")
    first, size, delta = inputs(span, 3)
    need(is_scalar(first, 0), "the range does not count from 0", span)
    step = int(scalar(delta))
    need(step > 0, "the range does not count upwards", span)
    need(dtype(size) == ir.DataType.INT64, "the positions are no int64", size)
    known = contents(size)
    if known is None or not symbolic.at_least(known[0], 0):
        raise Refusal("the range may end below 0, from where a Slice counts from the back", size)
    return size, step


def _run(x: ir.Value, place: int, offset: int, size: ir.Value, step: int) -> ir.Value:
    """The numbers at one offset."""
    end = ir.node("Add", [size, constant([offset])]).outputs[0] if offset else size
    bounds = [constant([offset]), end, constant([place]), constant([step])]
    return ir.node("Slice", [x, *bounds]).outputs[0]


WINDOW_RUNS = Form("", "Slice", "for each run of a window")
MAX_RUNS = 16
"""Slices that take the place of a Gather, at most."""


class Taken(NamedTuple):
    """What is taken from a value along one axis.

    Attributes:
        nodes: The nodes that take it, the last one last.
        x: The value.
        place: The axis.
        indices: The elements, in the shape that comes in the place of the axis.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    place: int
    indices: np.ndarray


class Runs(NamedTuple):
    """Indices as runs of equal steps.

    Attributes:
        along: The axis of the indices from run to run; None where all are one run.
        starts: The first index of each run.
        step: From index to index of a run.
        length: The indices of a run.
    """

    along: int | None
    starts: tuple[int, ...]
    step: int
    length: int


class WindowGatherDecomposition(CpuRule[Match]):
    """``Gather(x, windows)`` → ``Transpose(Reshape(Concat(Slice(x), …)))``, where windows are long runs of numbers.

    A Gather of overlapping windows copies number by number; a few Slices take the same numbers in long runs.

    ``unfold`` of signals and images (local attention, convolutions with computed kernels, im2col) is exported as a
    Gather by a constant matrix of indices, often one behind another: the first cuts frames, the second the windows of
    each.

    Two Gathers that cut windows from windows become one. Of few numbers, it is the number of nodes that counts.
    """

    targets = MEASURED_TARGETS
    roots = ("Gather",)
    opsets = (11, NEWEST_OPSET)  # the first with negative indices
    lookback = 3
    looks_downstream = True
    weighs = (WINDOW_RUNS,)

    def match(self, root: ir.Node) -> Match:
        """Constant indices, each of a single number, that count along all their axes but one."""
        need(not _goes_on(root), "another Gather takes from its result", root)
        plain = _taken(root)
        for taken in (*_behind_another(plain), plain):
            elements = _elements(taken)
            runs = _runs(taken.indices)
            if runs is not None:
                check_faster(root, WINDOW_RUNS, elements=elements, step=runs.step)
                return Match(taken.nodes, functools.partial(_slices, taken, runs))
        raise Refusal("the indices are not a few runs of equal steps", root)


def _slices(taken: Taken, runs: Runs) -> ir.Node:
    """Take each run, put them one behind another, and give them the shape of the indices."""
    nodes, x, place, indices = taken
    along, starts, step, length = runs
    reach, version = step * (length - 1) + 1, opset(nodes[-1])
    parts = [ops.slice_node(x, [(place, start, start + reach, step)], version).outputs[0] for start in starts]
    joined = parts[0] if len(parts) == 1 else ir.node("Concat", parts, {"axis": place}).outputs[0]
    behind = [1] * (rank(x) - place - 1)
    shape = list(indices.shape)
    if along is not None:
        shape = [shape.pop(along), *shape]
    shaped = ir.node("Reshape", [joined, constant([*[0] * place, *shape, *behind])])
    if not along:
        return shaped
    moved = [*range(1, along + 1), 0, *range(along + 1, len(shape))]
    total = place + len(shape) + len(behind)
    perm = [*range(place), *(place + each for each in moved), *range(place + len(shape), total)]
    return ir.node("Transpose", shaped.outputs, {"perm": perm})


def _taken(node: ir.Node) -> Taken:
    """What one Gather takes, by indices that count from the front.

    Raises:
        Refusal: If they are not known, or one is out of range.
    """
    x, given = inputs(node, 2)
    place = ops.Gather(node).axis
    indices = array_of(given)
    (size,) = need_fixed(dims(x)[place : place + 1], "the axis has no fixed size", x)
    indices = np.where(indices < 0, indices + size, indices)
    need(bool(((indices >= 0) & (indices < size)).all()), "an index is out of range", given)
    return Taken((node,), x, place, indices)


def _behind_another(taken: Taken) -> Iterator[Taken]:
    """The same from what another Gather takes from, whose axes it goes on from; nothing if there is none."""
    unsqueeze = taken.x.producer()
    ones: set[int] = set()
    value = taken.x
    nodes = taken.nodes
    if is_op(unsqueeze, "Unsqueeze"):
        ones = set(ops.Unsqueeze(unsqueeze).axes)
        nodes = (unsqueeze, *nodes)
        (value,) = inputs(unsqueeze, 1)
    gather = value.producer()
    if not is_op(gather, "Gather"):
        return
    if not is_constant(inputs(gather, 2)[1]) or not is_used_once(value):
        return
    first = _taken(gather)
    kept = [each for each in range(rank(taken.x)) if each not in ones]
    region = kept[first.place : first.place + first.indices.ndim]
    if not region or not is_used_once(taken.x):
        return
    inside = range(region[0], region[-1] + 1)
    if taken.place in inside and all(one in inside for one in ones):
        indices = np.expand_dims(first.indices, sorted(one - region[0] for one in ones))
        combined = np.take(indices, taken.indices, axis=taken.place - region[0])
        yield Taken((gather, *nodes), first.x, first.place, combined)


def _goes_on(root: ir.Node) -> bool:
    """Whether another Gather by constant indices takes from the result, and nothing else: it is the better root."""
    value = root.outputs[0]
    if is_used_once(value) and is_op(users(value)[0], "Unsqueeze"):
        value = users(value)[0].outputs[0]
    user = users(value)[0] if is_used_once(value) else None
    return is_op(user, "Gather") and user.inputs[0] is value and is_constant(inputs(user, 2)[1])


def _elements(taken: Taken) -> int:
    """How many single numbers are taken, as far as is known; rows of numbers are refused."""
    nodes, x, place, indices = taken
    need_float32(x, MEASURED)
    shape = dims(x)
    need(all(size == 1 for size in shape[place + 1 :]), "it takes rows, which are copied as they are", nodes[-1])
    known: int = math.prod(size for size in shape[:place] if isinstance(size, int))
    need(indices.ndim > 1, "it takes no windows", nodes[-1])
    return indices.size * known


def _runs(indices: np.ndarray) -> Runs | None:
    """The fewest runs of equal steps that indices are, from one end of an axis to the other; None if there are many."""
    if _step(indices.reshape(1, -1)):
        return _of_rows(None, indices.reshape(1, -1))
    axes = [along for along, count in enumerate(indices.shape) if 1 < count <= MAX_RUNS]
    for along in sorted(axes, key=lambda each: indices.shape[each]):
        rows = np.moveaxis(indices, along, 0).reshape(indices.shape[along], -1)
        if _step(rows):
            return _of_rows(along, rows)
    return None


def _step(rows: np.ndarray) -> int:
    """The step from each number of all rows to the next; 0 if there is none."""
    steps = np.diff(rows, axis=1)
    first = int(steps[0, 0]) if steps.size else 0
    return first if first > 0 and bool((steps == first).all()) else 0


def _of_rows(along: int | None, rows: np.ndarray) -> Runs:
    return Runs(along, tuple(rows[:, 0].tolist()), _step(rows), rows.shape[1])

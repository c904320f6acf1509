"""ScatterNDs that assign to neighbouring places along one axis, as exporters write ``x[..., start:stop] = updates``.

They name rows by constants, behind a Transpose that brings their axis to the front, or each element by a count along
each of its axes. Those of ``x[mask] = updates`` name each element of what a mask marks.

An assignment along an inner axis (``cache[:, :, positions] = rows``) needs no moved axes. ScatterND names places from
the first axis on, so exporters bring the axis to the front and back again: the whole cache of a decoder is moved twice
to write a row. With the places of the axes before it, ScatterND writes where the rows are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.coordinates import linear
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_fixed,
    need_known,
    opset,
    optional,
    producer,
    rank,
    same_dim,
    users,
)
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.semantics.opset_changes import SHAPE_HAS_AN_END_FROM

MAX_STEPS = 8
"""So many nodes make the indices of one axis."""

MAX_ASSIGNMENTS = 4096
"""So many are put together: the steps of a loop that a tracer has unrolled, each of which assigns its result."""

_LOOKBACK = 16
"""So many, where they are followed by one that is not understood, perhaps not yet: each of them is tried."""


class ScatterElimination(Elimination):
    """``ScatterND(x, places, updates)`` with all places, each in its place → ``updates``."""

    after = ("expand_fusion", "shape_sharing")
    roots = ("ScatterND",)
    lookback = MAX_STEPS

    def match(self, root: ir.Node) -> Forwarded:
        """Updates as large as the tensor, and indices that count along each of its axes."""
        x, _, updates = inputs(root, 3)
        _check_replaces(root)
        shape = dims(x)
        need(all(map(same_dim, dims(updates, len(shape)), shape)), "the updates may be others than all", updates)
        need(not any(_first_places(root, shape)), "the indices do not count from 0", root)
        return Forwarded((root,), updates)


class MaskedRows(Struct, frozen=True):
    """An assignment to the rows that a mask marks.

    Attributes:
        nodes: The assignment: its indices may be counted elsewhere too.
        x: What is assigned to.
        mask: The mask, which has a last axis of size 1.
        updates: The new rows, at least as many as are marked.
        width: How many columns a row has.
        may_be_more: Whether there may be more rows than are marked.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    mask: ir.Value
    updates: ir.Value
    width: int
    may_be_more: bool


class MaskedScatterConversion(RewriteRule[MaskedRows]):
    """``ScatterND(x, NonZero(Expand(mask)), each element)`` → ``ScatterND(x, NonZero(mask), rows)``.

    ``x[mask] = rows`` and ``masked_scatter`` are exported so: features of an image among the embeddings of a text, and
    what an expert gives for its tokens. An element has as many indices as x has axes, a row one less.
    """

    roots = ("ScatterND",)
    opsets = (11, NEWEST_OPSET)  # the first with ScatterND, and with computed bounds of a Slice
    lookback = 5

    def match(self, root: ir.Node) -> MaskedRows:
        """Indices of all elements of the rows that a mask marks, and as many elements in their order."""
        x, places, updates = inputs(root, 3)
        need(attribute(root, "reduction", "none") == "none", "it combines what is there with the updates", root)
        turn = producer(places, "Transpose")
        need(ops.Transpose(turn).order == (1, 0), "an index is no place that was found", turn)
        search = producer(inputs(turn, 1)[0], "NonZero")
        repeat = producer(inputs(search, 1)[0], "Expand")
        mask, shape = inputs(repeat, 2)[0], dims(x)
        need(len(shape) > 1 and len(shape) == rank(mask), "the mask has other axes", mask)
        need(all(map(same_dim, dims(repeat.outputs[0], len(shape)), shape)), "the mask is of another size", repeat)
        marks = dims(mask)
        need(same_dim(marks[-1], 1) and all(map(same_dim, marks[:-1], shape[:-1])), "it marks no rows", mask)
        (width,) = need_fixed(shape[-1:], "the rows have no fixed size", x)
        need(width > 1, "a row has no more than one element", x)
        cut, listed = _as_many(updates, dims(places)[0])
        flat = producer(listed, *RESHAPING)
        rows = inputs(flat, len(flat.inputs))[0]
        need(rank(rows) > 0 and same_dim(dims(rows)[-1], width), "the updates are no such rows", rows)
        return MaskedRows((root,), x, mask, rows, width, cut is not None)

    def rewrite(self, found: MaskedRows) -> ir.Value:
        """Search the mask itself, and take as many rows as it marks."""
        mask = ops.squeezed(found.mask, [-1], opset(found.nodes[-1]))
        marked = ir.node("NonZero", [mask]).outputs[0]
        places = ir.node("Transpose", [marked], {"perm": [1, 0]}).outputs[0]
        rows = ir.node("Reshape", [found.updates, constant([-1, found.width])]).outputs[0]
        if found.may_be_more:
            sizes = ir.node("Shape", [marked]).outputs[0]
            count = ir.node("Gather", [sizes, constant([1])], {"axis": 0}).outputs[0]
            rows = ir.node("Slice", [rows, constant([0]), count, constant([0])]).outputs[0]
        return ir.node("ScatterND", [found.x, places, rows]).outputs[0]


def _as_many(updates: ir.Value, count: Dim) -> tuple[ir.Node | None, ir.Value]:
    """The Slice that takes the first so many of a list, if there is one, and the list."""
    cut = updates.producer()
    if cut is None or not is_op(cut, "Slice"):
        return None, updates
    listed, starts, ends = inputs(cut, 3)
    steps = optional(cut, 4)
    is_first = contents(starts) == (0,) and (steps is None or contents(steps) == (1,))
    need(is_first, "it takes others than the first", cut)
    taken = contents(ends)
    need(taken is not None and same_dim(taken[0], count), "it takes another number than is marked", cut)
    return cut, listed


class ScatterConcatConversion(RewriteRule[Match]):
    """``ScatterND(ScatterND(x, first places, a), the other places, b)`` → ``Concat(a, b)``.

    Nothing is left of what they are written into, and Concat lets Transposes and the heads of attention through.
    """

    after = ("constant_folding", "expand_fusion", "scatter_elimination", "shape_sharing")
    roots = ("ScatterND",)
    lookback = _LOOKBACK
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Assignments along one axis that leave no place as it was, none of which is written over in part."""
        last = _assignment(root)
        following = _following(root)
        end = following is None or not _goes_on(following, last)
        need(end, "what is written is assigned to further", root)
        whole = dims(root.outputs[0])[last.axis]
        parts = [last]
        written = last.stop - last.start
        node = root
        for _ in range(MAX_ASSIGNMENTS if following is None else _LOOKBACK):
            if written == whole:
                need(parts[-1].stop == whole, "places are written that are not there", root)
                return Match((root,), lambda: ir.node("Concat", [one.updates for one in parts], {"axis": last.axis}))
            node = _before(node)
            earlier = _assignment(node)
            need(earlier.axis == last.axis, "another axis is assigned to before", node)
            if _is_new(earlier, parts):
                insort(parts, earlier, key=lambda one: one.start)
                written += earlier.stop - earlier.start
        raise Refusal("there are many assignments", root)


def _before(node: ir.Node) -> ir.Node:
    """The assignment before another."""
    before = inputs(node, 1)[0].producer()
    return need_known(before if is_op(before, "ScatterND") else None, "places stay as they are", node)


def _following(root: ir.Node) -> ir.Node | None:
    """What alone reads a tensor that was written to, its shape apart, if it writes to it again."""
    written = root.outputs[0]
    readers = [node for node in users(written) if not is_op(node, "Shape")]
    alone = len(readers) == 1 and not written.is_graph_output() and is_op(readers[0], "ScatterND")
    return readers[0] if alone and readers[0].inputs[0] is written else None


def _goes_on(following: ir.Node, last: Assignment) -> bool:
    """Whether another assignment is along the same axis: from it on, these places are seen as well."""
    try:
        return _assignment(following).axis == last.axis
    except Refusal:
        return False


def _is_new(earlier: Assignment, parts: list[Assignment]) -> bool:
    """Whether places are not written later, as others are; False if all of them are.

    Args:
        earlier: An assignment.
        parts: Those behind it, in the order of their places.

    Raises:
        Refusal: If some are and some are not.
    """
    at = bisect_left(parts, earlier.stop, key=lambda one: one.start)
    overlapping = at > 0 and parts[at - 1].stop > earlier.start
    if not overlapping:
        return True
    while at > 0 and parts[at - 1].stop > earlier.start:
        at -= 1
    inside = parts[at].start <= earlier.start and _reaches(parts[at:], earlier.stop)
    need(inside, "what is written is written over", earlier.updates)
    return False


def _reaches(parts: list[Assignment], stop: int) -> bool:
    """Whether places that begin with those of the first assignment are written without a gap up to one."""
    end = parts[0].start
    for one in parts:
        if one.start > end or end >= stop:
            break
        end = one.stop
    return end >= stop


class Assignment(Struct, frozen=True):
    """What is written to the places ``start <= place < stop`` of an axis, whatever the other axes."""

    updates: ir.Value
    axis: int
    start: int
    stop: int


def _assignment(node: ir.Node) -> Assignment:
    """A ScatterND as an assignment to a part of one axis, whose size is fixed.

    Raises:
        Refusal: If it is another, or the places are not proven.
    """
    x, indices, updates = inputs(node, 3)
    _check_replaces(node)
    return _to_rows(x, indices, updates) if is_constant(indices) else _to_places(node, x, updates)


def _check_replaces(node: ir.Node) -> None:
    """Refuse a ScatterND that combines what is there with what comes."""
    need(attribute(node, "reduction", "none") == "none", "the updates are combined with what is there", node)


def _first_places(node: ir.Node, shape: tuple[Dim, ...]) -> list[int]:
    """Where the indices of a ScatterND begin to count along each axis of what they name.

    Args:
        node: A ScatterND whose indices name each element.
        shape: The shape of its updates.

    Raises:
        Refusal: If they count in another way.
    """
    joined = producer(node.inputs[1], "Concat")
    parts = inputs(joined, len(shape))
    last = ops.Concat(joined).axis_of(len(shape) + 1) == len(shape)
    need(len(joined.inputs) == len(shape) and last, "the indices are not put together by axis", joined)
    return [_first(part, place, shape) for place, part in enumerate(parts)]


def _to_rows(x: ir.Value, indices: ir.Value, updates: ir.Value) -> Assignment:
    """Rows that constants name, each once and one behind the other, of the first axes that they count along."""
    named = array_of(indices)
    counted = named.shape[-1] if named.ndim else 0
    whole = dims(x)[:counted]
    rows = named.ndim == counted + 1 == len(whole) + 1 > 1 and bool(named.size)
    need(rows, "the indices are not those of rows", indices)
    sizes = np.array([size if isinstance(size, int) else 0 for size in whole])  # of one that is not known, no row is
    named = np.where(named < 0, named + sizes, named)
    starts = named[(0,) * counted]
    counting = np.moveaxis(np.indices(named.shape[:-1]), 0, -1) + starts
    in_range = bool(((named >= 0) & (named < sizes)).all())
    need(in_range and np.array_equal(named, counting), "the rows do not follow each other", indices)  # else it fails
    parts = [at for at, size in enumerate(whole) if named.shape[at] != size] or [0]
    need(len(parts) == 1, "it is not a part of one axis that is assigned", indices)
    (along,) = parts
    return Assignment(updates, along, int(starts[along]), int(starts[along]) + named.shape[along])


def _to_places(node: ir.Node, x: ir.Value, updates: ir.Value) -> Assignment:
    """Elements, or rows of the first axes, that counts name, all of them along each axis but one."""
    size = dims(x)
    named = len(producer(node.inputs[1], "Concat").inputs)
    whole = size[:named]
    shape = dims(updates, len(size))[:named]
    parts = [at for at, (own, size) in enumerate(zip(shape, whole, strict=True)) if not same_dim(own, size)]
    need(len(parts) == 1, "it is not a part of one axis that is assigned", node)
    starts = _first_places(node, shape)
    (along,) = parts
    need(not any(starts[:along] + starts[along + 1 :]), "the indices do not count from 0", node)
    count, start = shape[along], starts[along]
    need(isinstance(count, int) and start >= 0, "the places are not fixed", updates)
    assert isinstance(count, int)
    return Assignment(updates, along, start, start + count)


def _first(part: ir.Value, place: int, shape: tuple[Dim, ...]) -> int:
    """Where a part of the indices begins to count along one axis, which it names for each element."""
    counted = need_known(linear(part), "the indices do not count", part)
    need(symbolic.same_shape(counted.dims, (*shape, 1)), "the indices may be for a part", part)
    alone = all(axis == place or same_dim(stride, 0) for axis, stride in enumerate(counted.strides))
    need(alone, "an index is not for one axis", part)
    by_ones = same_dim(counted.strides[place], 1) or same_dim(shape[place], 1)
    if not by_ones or not isinstance(counted.offset, int):
        raise Refusal("the indices do not count from 0, nor from another number", part)
    return counted.offset


class ScatterTransposeElimination(RewriteRule[Match]):
    """``Transpose⁻¹(ScatterND(Transpose(x), i, u))`` → ``ScatterND(x, (…, i), Transpose⁻¹(u))``."""

    roots = ("Transpose",)
    after = ("scatter_concat_conversion", "scatter_elimination", "transpose_merging")
    opsets = (SHAPE_HAS_AN_END_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """A scatter of whole rows along one axis, which a Transpose brings to the front and the root back."""
        scatter = producer(inputs(root, 1)[0], "ScatterND")
        moved, positions, updates = inputs(scatter, 3)
        need(is_used_once(scatter.outputs[0]), "others use the result with moved axes", scatter)
        front = producer(moved, "Transpose")
        need(is_used_once(moved), "others use the tensor with moved axes", front)
        order = ops.Transpose(front).order
        need(ops.Transpose(root).order == _inverse(order), "the axes do not go back to where they were", root, front)
        need(dims(positions, 2)[1] == 1, "the indices name more than one axis", positions)
        need(not is_constant(positions), "the indices are constants, which other passes read as a part", positions)
        (data,) = inputs(front, 1)
        shape, axis, version = dims(data, len(order)), order[0], opset(root)

        def build() -> ir.Node:
            indices = _places(data, shape[:axis], positions, version) if axis else positions
            back = ir.node("Transpose", [updates], {"perm": _inverse(order)}).outputs[0]
            return ir.Node("", "ScatterND", [data, indices, back], list(scatter.attributes.values()))

        return Match((root, scatter, front), build)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The order that takes an order back."""
    return tuple(int(place) for place in np.argsort(order))


def _places(data: ir.Value, before: Sequence[Dim], positions: ir.Value, version: int) -> ir.Value:
    """The indices of all elements of the axes before one, and of the positions along it: [D, …, S, axis + 1]."""
    axis = len(before)
    positions = ops.squeezed(positions, (1,), version)
    sizes = [_size(data, at) for at in range(axis)]
    count = ir.node("Shape", [positions])
    shape = ir.node("Concat", [*sizes, count.outputs[0]], {"axis": 0}).outputs[0]
    counts = [_count(dim, size, axis - at, version) for at, (dim, size) in enumerate(zip(before, sizes, strict=True))]
    parts = []
    for part in (*counts, positions):
        spread = ir.node("Expand", [part, shape])
        parts.append(ops.unsqueezed(spread.outputs[0], (axis + 1,), version))
    return ir.node("Concat", parts, {"axis": axis + 1}).outputs[0]


def _size(data: ir.Value, axis: int) -> ir.Value:
    """The size of an axis, as a vector of one element."""
    return ir.node("Shape", [data], {"start": axis, "end": axis + 1}).outputs[0]


def _count(dim: Dim, size: ir.Value, behind: int, version: int) -> ir.Value:
    """The numbers from 0 to a size, with so many axes of size 1 behind them."""
    axes = tuple(range(1, behind + 1))
    if isinstance(dim, int):
        return constant(np.arange(dim, dtype=np.int64).reshape(-1, *(1 for _ in axes)))
    numbers = ir.node("Range", [constant(0), ops.squeezed(size, (0,), version), constant(1)])
    return ops.unsqueezed(numbers.outputs[0], axes, version)

"""Gathers of blocks and of whole rows, which other ops take without a number for each element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.coordinates import Linear, counts_up, linear
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    attribute,
    before,
    dims,
    dtype,
    inputs,
    integers,
    is_constant,
    is_never_zero,
    is_op,
    is_used_once,
    need,
    need_known,
    opset,
    optional,
    producer,
    rank,
    same_dim,
    shape_of,
    static_dims,
    tensor_of,
    users,
)
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.views.emission import FIRST, LAST, ones_beside

MAX_RENAMES = 4
GATHERS_IN_BATCHES_FROM = 12


class GatherElementsCanonicalization(RewriteRule[Match]):
    """``GatherElements(x, Expand(i))`` → ``GatherND(x, i)``, where i says the same for all numbers of a row.

    ONNX Runtime's CPU then copies whole rows, and the repeated indices are not needed.
    """

    roots = ("GatherElements",)
    opsets = (GATHERS_IN_BATCHES_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """Indices of shape [batch, rows, 1] that are repeated along the last axis, for all columns."""
        x, repeated = inputs(root, 2)
        (indices, _) = inputs(producer(repeated, "Expand", "Tile"), 2)
        shape = dims(x)
        place = ops.OneAxis(root).axis
        need(place == len(shape) - 2, "it selects along another axis than the last but one", root)
        need(dtype(indices) == ir.DataType.INT64, "GatherND takes indices of 64 bits", indices)
        before, after = dims(indices, len(shape)), dims(repeated, len(shape))
        need(same_dim(before[-1], 1), "the indices differ within a row", indices)
        need(not same_dim(after[-1], 1), "a row has one number", repeated)
        need(same_dim(after[-1], shape[-1]), "a part of each row is selected", repeated)
        batch = all(map(same_dim, before[:-2], shape[:-2])) and all(map(same_dim, before[:-1], after[:-1]))
        need(batch, "the indices are repeated along other axes too", repeated)
        return Match((root,), lambda: ir.node("GatherND", [x, indices], {"batch_dims": place}))


class GatherNdCanonicalization(RewriteRule[Match]):
    """``GatherND(x, i)`` by one index for each block → ``Gather(x, Squeeze(i))``, where i was reshaped to be that.

    PyTorch's exporters write an index of the first axis so. Rules that know a selection of rows know a Gather.
    """

    roots = ("GatherND",)
    opsets = (11, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """Indices of one number that a Reshape, Flatten or Unsqueeze made, or that are constant."""
        x, indices = inputs(root, 2)
        need(attribute(root, "batch_dims", 0) == 0, "it selects in batches", root)
        need(rank(indices) > 0 and same_dim(dims(indices)[-1], 1), "several numbers name a block", indices)
        is_arranged = is_constant(indices) or is_op(indices.producer(), *RESHAPING)
        need(is_arranged, "nothing has reshaped the indices", indices)  # a Squeeze would be one node more

        def build() -> ir.Node:
            return ir.node("Gather", [x, ops.squeezed(indices, [-1], opset(root))], {"axis": 0})

        return Match((root,), build)


class GatherOfSliceFusion(RewriteRule[Match]):
    """``Gather(table, Slice([0, 1, 2 …]))`` → ``Slice(table)``: the first positions of a table of embeddings."""

    roots = ("Gather",)
    opsets = (10, NEWEST_OPSET)  # the first with computed bounds; constant ones are folded

    def match(self, root: ir.Node) -> Match:
        """A Slice of a constant that counts all rows, in their order."""
        table, positions = inputs(root, 2)
        shape = tensor_of(table).shape.numpy()
        cut = producer(positions, "Slice", alone="the positions are used elsewhere")
        numbers, starts, ends = inputs(cut, 3)
        place = ops.Gather(root).axis
        tensor = tensor_of(numbers)
        need(tensor.size == shape[place] and tensor.size > 0, "it is no slice of all rows", numbers)
        counting = np.arange(tensor.size).reshape(tensor.shape.numpy())
        need(bool(np.array_equal(array_of(numbers), counting)), "the positions are in another order", numbers)
        named = optional(cut, 3)
        axes = range(*static_dims(starts, 1)) if named is None else integers(named)

        def build() -> ir.Node:
            full = (*shape[:place], *tensor.shape.numpy(), *shape[place + 1 :])
            rows = table if len(full) == len(shape) else constant(array_of(table).reshape(full), dtype(table))
            moved = constant(np.array([place + axis % len(tensor.shape) for axis in axes], np.int64))
            steps = [value for value in cut.inputs[4:] if value is not None]
            return ir.node("Slice", [rows, starts, ends, moved, *steps])

        return Match((cut, root), build)


class Bound(NamedTuple):
    """What a Slice takes along one axis; a bound that is computed is the scalar value itself."""

    axis: int
    start: int | ir.Value
    end: int | ir.Value
    step: int = 1


class GatherToSliceFusion(RewriteRule[Match]):
    """``Gather``, ``GatherND`` by ``Range`` or by an arithmetic progression → ``Slice``, or ``x`` if it takes all.

    The indices may have come through Unsqueeze, Expand, Mul, Add and Concat: transformer exports index their attention
    masks so. Negative indices count from the end one by one, and bounds of a Slice do not: ``Range(-2, 0, 1)`` takes
    the last two elements, a Slice from -2 to 0 none (ONNX Runtime makes one of the other).

    A Slice ends at the last element, where indices beyond it fail. Only where there are no rows nothing fails, and the
    result has as many columns as there were indices: where that may be, a Reshape states their number.
    """

    after = ("constant_folding",)
    roots = ("Gather", "GatherND")
    opsets = (11, NEWEST_OPSET)  # the first with GatherND, and with negative indices
    lookback = 6
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Indices that count along each axis that they take."""
        x, indices = inputs(root, 2)
        if root.op_type == "GatherND":
            return _by_coordinates(root, x, indices)
        place = ops.Gather(root).axis
        progression = need_known(linear(indices), "the indices are not known", indices)
        if counts_up(progression, dims(x)[place]):
            return _all_of(root, x)
        if len(progression.moving) > 1:
            return _by_rows(root, x, indices, progression)
        need(len(progression.moving) == 1, "it takes one element", indices)
        bound = _bound(indices, progression, progression.moving[0], place)
        need(not is_op(x.producer(), "Shape"), "shape arithmetic keeps its form", x)
        shift = progression.moving[0]
        ones = tuple(place + other for other in range(len(progression.dims)) if other != shift)
        need(
            all(same_dim(progression.dims[other - place], 1) for other in ones),
            "an element is taken more than once",
            indices,
        )
        return _block((root,), x, (bound,), ones, root.outputs[0])


def _block(
    nodes: tuple[ir.Node, ...],
    source: ir.Value,
    bounds: tuple[Bound, ...],
    ones: tuple[int, ...],
    result: ir.Value,
    stated: int | None = None,
) -> Match:
    """The match of a block: a Slice of it, and the axes of 1 put in, as far as there is any of it.

    Args:
        nodes: The nodes that take it.
        source: What they take it from.
        bounds: Its bounds.
        ones: The axes of size 1 to insert.
        result: The result, which may stand below the root.
        stated: The axis of the result, if any, along which a Slice may give fewer elements than there are indices.
    """

    def build() -> dict[ir.Value, ir.Value]:
        version = opset(nodes[0])
        value = source
        if bounds:
            starts, ends, *others = (_list([bound[column] for bound in bounds], version) for column in (1, 2, 0, 3))
            value = ir.node("Slice", [value, starts, ends, *others]).outputs[0]
        value = ops.unsqueezed(value, ones, version) if ones else value
        if stated is not None and bounds:
            value = _with_dimension(value, stated, len(dims(result)), ends)
        return {result: value}

    return Match(nodes, build, (result,))


def _with_dimension(value: ir.Value, place: int, rank: int, size: ir.Value) -> ir.Value:
    """The value, reshaped to have a size along one axis; a 0 keeps what the value has.

    No Concat makes the shape: ONNX Runtime would write -1 for the size, which nothing tells where there are no rows.
    """
    shape = ir.node("Mul", [constant(np.eye(rank, dtype=np.int64)[place]), size]).outputs[0] if rank > 1 else size
    return ir.node("Reshape", [value, shape]).outputs[0]


def _list(column: Sequence[int | ir.Value], version: int) -> ir.Value:
    """The bounds of all axes as one value; a computed one stands alone, and has one element and at most one axis."""
    if not isinstance(column[0], ir.Value):
        return constant(np.array(column, np.int64))
    return column[0] if dims(column[0]) else ops.unsqueezed(column[0], [0], version)


def _bound(indices: ir.Value, progression: Linear, along: int, to: int) -> Bound:
    """What a Slice takes along the axis `to` where indices count along their axis `along`."""
    first, step, count = progression.offset, progression.strides[along], progression.dims[along]
    if isinstance(first, int) and isinstance(step, int) and isinstance(count, int):
        need(count > 0 and step != 0, "it takes one element", indices)
        last = first + (count - 1) * step
        need((first < 0) == (last < 0), "the indices go from the last element on to the first", indices)
        end = last + (1 if step > 0 else -1)
        need(FIRST <= end <= LAST, "no dimension has so many elements", indices)
        crossed = (step > 0 and end == 0) or (step < 0 and end == -1 and last == 0)
        return Bound(to, first, (LAST if step > 0 else FIRST) if crossed else end, step)
    range_ = before(indices, *RESHAPING, "Expand", "Identity")
    node = producer(range_, "Range")
    start, limit, _ = inputs(node, 3)
    need(isinstance(step, int) and step > 0, "the indices do not count up", indices)
    assert isinstance(step, int)
    positive = all(_never_negative(value) for value in (start, limit))
    need(positive, "an index may be negative, where it counts from the end and a bound does not", indices)
    need(all(len(dims(value)) <= 1 for value in (start, limit)), "a bound of the range has several axes", range_)
    known = contents(start)
    begin = known[0] if known is not None and isinstance(known[0], int) else start
    return Bound(to, begin if isinstance(begin, int) else start, limit, step)


def _never_negative(value: ir.Value) -> bool:
    known = contents(value)
    return known is not None and len(known) == 1 and symbolic.at_least(known[0], 0)


def _all_of(root: ir.Node, x: ir.Value) -> Match:
    """The case of all elements in their order: of x, or of a value that x is a Reshape of."""
    at = x
    for _ in range(MAX_RENAMES):
        try:
            nodes, result, ones = _reshaped(root, dims(at))
        except Refusal:
            at = inputs(producer(at, *sorted(RESHAPING)), 1)[0]
        else:
            return _block(nodes, at, (), ones, result)
    raise Refusal("the result is another cut of the elements", x)


def _by_rows(root: ir.Node, x: ir.Value, indices: ir.Value, progression: Linear) -> Match:
    """``row * columns + column`` into a flattened matrix, each row from its first column on.

    All rows are read: were there more columns read than there are, the last row's last index would be out of range.
    """
    at = x
    while shape_of(at) is None or len(dims(at)) != 2 or same_dim(dims(at)[1], 1):
        at = inputs(producer(at, *sorted(RESHAPING)), 1)[0]
    rows, columns = dims(at)
    need(ops.Gather(root).axis == 0, "it takes elements of a matrix along another axis", root)
    flat = dims(x)
    need(all(same_dim(dim, 1) for dim in flat[1:]), "it takes more than elements of a matrix", x)
    need(len(progression.moving) == 2, "the indices count along many axes", indices)
    row, column = progression.moving
    strides = (progression.strides[row], progression.strides[column])
    whole = same_dim(progression.dims[row], rows) and same_dim(strides[0], columns) and same_dim(strides[1], 1)
    need(whole and same_dim(progression.offset, 0), "the indices are not row times columns plus column", indices)
    others = [dim for other, dim in enumerate(progression.dims) if other not in (row, column)]
    need(all(same_dim(dim, 1) for dim in others), "an element is taken more than once", indices)
    addition = producer(indices, "Add")
    for operand in inputs(addition, 2):
        part = linear(operand)
        if part is None or len(part.moving) != 1 or not same_dim(part.offset, 0):
            continue
        if part.moving[0] - len(part.dims) == column - len(progression.dims):
            bound = _bound(operand, part, part.moving[0], 1)
            nodes, result, ones = _reshaped(root, (rows, progression.dims[column]))
            place = [axis for axis in range(2 + len(ones)) if axis not in ones][1]
            sure = _is_in_range(root, columns, progression.dims[column], (rows,))
            return _block(nodes, at, (bound,), ones, result, None if sure else place)
    raise Refusal("the columns are not counted by a Range", indices)


def _is_in_range(root: ir.Node, size: Dim, taken: Dim, others: Sequence[Dim]) -> bool:
    """Whether a Slice gives as many elements as there are indices, wherever the model runs."""
    return symbolic.at_least(symbolic.sub(size, taken), 0) or all(is_never_zero(dim, root) for dim in others)


def _reshaped(root: ir.Node, matrix: Sequence[Dim]) -> tuple[tuple[ir.Node, ...], ir.Value, tuple[int, ...]]:
    """The Gather and the Reshapes below that only add ones to the matrix, the last result, and the axes of the ones."""
    nodes, result = [root], root.outputs[0]
    path: tuple[tuple[ir.Node, ...], ir.Value, tuple[int, ...]] | None = None
    while True:
        ones = None if shape_of(result) is None else ones_beside(matrix, dims(result))
        if ones is not None:
            path = tuple(nodes), result, ones
        user = users(result)[0] if is_used_once(result) else None
        if not is_op(user, "Reshape") or user.inputs[0] is not result or user.graph is not root.graph:
            break
        nodes.append(user)
        result = user.outputs[0]
    return need_known(path, "the result is another cut of the elements", root)


def _by_coordinates(root: ir.Node, x: ir.Value, indices: ir.Value) -> Match:
    """The block that coordinates take where each counts up along one axis, in the order of the axes."""
    need(attribute(root, "batch_dims", 0) == 0, "it takes batches", root)
    shape, source = dims(indices), dims(x)
    parts = _coordinates(indices, len(shape) - 1)
    need(len(parts) <= len(source) and same_dim(shape[-1], len(parts)), "a coordinate is not known", indices)
    bounds: list[Bound] = []
    places: list[int] = []
    stated: int | None = None
    for own, (value, part) in enumerate(parts):
        moving = part.moving
        need(len(moving) == 1, "a coordinate does not count along one axis", indices)
        (place,) = moving
        need(not places or place > places[-1], "the coordinates are in another order", indices)
        need(same_dim(part.offset, 0) and same_dim(part.strides[place], 1), "a coordinate does not count up", indices)
        if not same_dim(part.dims[place], source[own]):
            bounds.append(_bound(value, part, place, own))
            others = [dim for at, dim in enumerate(shape[:-1]) if at != place]
            stated = None if _is_in_range(root, source[own], part.dims[place], others) else place
        need(same_dim(part.dims[place], shape[place]), "an element is taken more than once", indices)
        places.append(place)
    ones = tuple(other for other in range(len(shape) - 1) if other not in places)
    need(all(same_dim(shape[other], 1) for other in ones), "an element is taken more than once", indices)
    need(len(bounds) <= 1, "several bounds are computed", indices)
    return _block((root,), x, tuple(bounds), ones, root.outputs[0], stated)


def _coordinates(indices: ir.Value, last: int) -> list[tuple[ir.Value, Linear]]:
    """The coordinates of each element, one by one."""
    concat = indices.producer()
    each = [indices]
    if is_op(concat, "Concat"):
        need(ops.Concat(concat).axis == last, "the coordinates are joined along another axis", concat)
        each = list(inputs(concat, len(concat.inputs)))
    coordinates = []
    for value in each:
        part = linear(value)
        if part is None or not same_dim(part.dims[last], 1):
            raise Refusal("a coordinate is not known", value)
        coordinates.append((value, part))
    return coordinates

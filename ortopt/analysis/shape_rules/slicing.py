"""Ops that take tensors apart, put them together, and pick from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, Unknown, axes_of, axis_of, integers, meet, rule
from ortopt.graph import symbolic
from ortopt.graph.facts import INTEGERS, MAX_ELEMENTS, Dims
from ortopt.graph.integer_ranges import LARGEST, is_endless
from ortopt.graph.symbolic import UNKNOWN, Dim
from ortopt.ops.moves import ENDS, taken
from ortopt.semantics.opset_changes import (
    BOUNDS_ARE_INPUTS_FROM,
    PADS_ARE_AN_INPUT_FROM,
    REGION_IS_AN_INPUT_FROM,
    SCALES_ARE_AN_INPUT_FROM,
    SIZES_ARE_AN_INPUT_FROM,
)

INT64 = ir.DataType.INT64

_FAR = 2**24
"""An end from here on is meant as that of every dimension."""


@rule("Concat")
def concat(call: Call) -> None:
    """The sum along the axis; other dimensions agree, so the best known one of each holds."""
    count = len(call.inputs)
    call.types[0] = next((dtype for index in range(count) if (dtype := call.dtype(index)) is not None), None)
    shapes = [call.dims_or_none(index) for index in range(count)]
    known = [dims for dims in shapes if dims is not None]
    if not known or len({len(dims) for dims in known}) != 1:
        raise Unknown
    axis = axis_of(call.attribute("axis", 1 if call.version < 4 else None), len(known[0]))
    result = list(known[0])
    for dims in known[1:]:
        result = [meet(x, y) for x, y in zip(result, dims, strict=True)]
    total: Dim = 0
    for shape in shapes:
        total = UNKNOWN if shape is None else symbolic.add(total, shape[axis])
    result[axis] = total
    call.shapes[0] = result
    if call.types[0] not in INTEGERS or not isinstance(total, int) or total > MAX_ELEMENTS:
        return
    parts = [call.array(index) for index in range(count)]
    if len(result) == 1:  # pieces that are not known leave a gap
        sizes = integers(shape[0] for shape in known)
        parts = [
            np.full(size, UNKNOWN, np.object_) if part is None else part
            for part, size in zip(parts, sizes, strict=True)
        ]
    pieces = [part for part in parts if part is not None]
    if len(pieces) == count:
        call.hold(np.concatenate(pieces, axis))


@rule("Split")
def split(call: Call) -> None:
    """Parts along the axis: as told, or equal ones with the last one smaller."""
    count = call.output_count()
    dtype = call.dtype(0)
    for index in range(count):
        call.types[index] = dtype
    dims = call.dims(0)
    axis = axis_of(call.attribute("axis", 0), len(dims))
    for index in range(count):
        call.shapes[index] = (*dims[:axis], UNKNOWN, *dims[axis + 1 :])
    sizes = _split_sizes(call, dims[axis], count)
    if len(sizes) != count:
        raise Unknown
    found = call.elements(0) if len(dims) == 1 else None
    start = 0
    for index, size in enumerate(sizes):
        call.shapes[index] = (*dims[:axis], size, *dims[axis + 1 :])
        if found is not None and isinstance(size, int):
            call.contents[index] = found[start : start + size]
            start += size


def _split_sizes(call: Call, whole: Dim, count: int) -> Sequence[Dim]:
    if call.version < SIZES_ARE_AN_INPUT_FROM["Split"]:
        sizes: Sequence[Dim] | None = call.attribute("split")
    elif call.has(1):
        sizes = call.elements(1)
        if sizes is None:
            raise Unknown
    else:
        sizes = None
    if sizes is not None:
        return sizes
    number = call.attribute("num_outputs", count) if call.version >= 18 else count
    part = symbolic.ceildiv(whole, number)
    if call.version < 18 or symbolic.divides(number, whole):
        return [symbolic.floordiv(whole, number)] * count
    last = symbolic.sub(whole, symbolic.mul(part, number - 1))
    return [part] * (count - 1) + [last]


@rule("Slice", typed=0)
def slice_(call: Call) -> None:
    """Along each axis the elements from start to before end, in steps."""
    dims = list(call.dims(0))
    rank = len(dims)
    if call.version < BOUNDS_ARE_INPUTS_FROM["Slice"]:
        starts, ends = call.attribute("starts"), call.attribute("ends")
        axes, steps = call.attribute("axes"), None
    else:
        starts, ends, steps = call.elements(1), call.elements(2), call.elements(4)
        axes = call.integers(3) if call.has(3) else None
    if axes is None:
        count = len(starts or ends or ())
        if not count:
            call.shapes[0] = (UNKNOWN,) * rank
            return
        axes = range(count)
    axes = each_once(axes_of(axes, rank))
    missing = (UNKNOWN,) * len(axes)
    starts, ends = starts or missing, ends or missing
    if steps is None:
        steps = missing if call.version >= BOUNDS_ARE_INPUTS_FROM["Slice"] and call.has(4) else (1,) * len(axes)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        stop = _endless(call, dims[axis], end)
        dims[axis] = sliced(dims[axis], start, stop, step, lambda bound: call.host.is_positive(symbolic.add(bound, 1)))
    call.shapes[0] = dims
    if (array := call.turns()) is None:
        return
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)):
            return
        array = array.take(taken(array.shape[axis], start, end, step), axis)
    call.hold(array)


def _endless(call: Call, dim: Dim, end: Dim) -> Dim:
    """The end of every dimension in the place of one that the dimension never reaches: tf2onnx writes 10^9."""
    if isinstance(dim, int) or not isinstance(end, int) or end < _FAR:
        return end
    if call.host.sizes.lies_within(dim, 0, end):
        return LARGEST
    call.host.doubts(call.node)  # it may be so when more tensors are known
    return end


def sliced(dim: Dim, start: Dim, end: Dim, step: Dim, is_natural: Callable[[Dim], bool] = lambda _: False) -> Dim:
    """The number of elements that a slice takes of a dimension.

    Args:
        dim: The dimension.
        start: Where to begin.
        end: Where to stop before.
        step: How far apart.
        is_natural: Whether a bound is known not to be below 0, beyond what it says itself.
    """
    if not isinstance(step, int) or step == 0:
        return UNKNOWN
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int):
        return len(taken(dim, start, end, step))
    if step < 0:
        whole = isinstance(start, int) and isinstance(end, int) and (start >= LARGEST or start == -1)
        to_first = isinstance(end, int) and (end <= -LARGEST or end in ENDS)
        return symbolic.ceildiv(dim, -step) if whole and to_first else UNKNOWN
    if is_endless(end) and (length := _last(start, dim)) is not None:
        return symbolic.ceildiv(length, step)
    first = _bound(start, dim, is_natural)
    last = dim if is_endless(end) else _bound(end, dim, is_natural)
    if not symbolic.is_known(first) or not symbolic.is_known(last):
        return UNKNOWN
    length = last if first == 0 else symbolic.maximum(symbolic.sub(last, first), 0)  # neither is below 0
    return symbolic.ceildiv(length, step)


def _last(start: Dim, dim: Dim) -> Dim | None:
    """How many elements are behind a start ``max(dim - n, 0)``: the last n, or all; None if it is no such start."""
    place = symbolic.unfloored(start)
    count = None if place is None else symbolic.sub(dim, place)
    return symbolic.minimum(count, dim) if count is not None and symbolic.at_least(count, 0) else None


def _bound(index: Dim, dim: Dim, is_natural: Callable[[Dim], bool]) -> Dim:
    """Where an index of a slice points, from 0 to the dimension; unknown where its sign is."""
    if isinstance(index, int) and index >= LARGEST:
        return dim
    if symbolic.equal(index, dim):
        return dim
    if symbolic.at_least(index, 0):
        return symbolic.minimum(index, dim)
    back = symbolic.sub(0, index)
    if symbolic.at_least(back, 1) or (symbolic.at_least(back, 0) and symbolic.vanishes_with(dim, back)):
        return symbolic.maximum(symbolic.add(dim, index), 0)  # -0 would be the first, as it is where there is none
    if symbolic.is_known(index) and not isinstance(index, int) and is_natural(index):
        return symbolic.minimum(index, dim)
    return UNKNOWN


@rule("Gather", typed=0)
def gather(call: Call) -> None:
    """The axis replaced by the shape of the indices."""
    data, indices = call.dims(0), call.dims(1)
    axis = axis_of(call.attribute("axis", 0), len(data))
    call.shapes[0] = data[:axis] + indices + data[axis + 1 :]
    if (array := call.turns()) is None or (chosen := call.array(1)) is None:
        return
    size = array.shape[axis]
    if all(isinstance(index, int) and -size <= index < size for index in chosen.flat):
        call.hold(np.take(array, chosen.astype(np.int64), axis))
        return
    if array.ndim == 1:
        picked: list[Dim] = [
            array.item(index) if isinstance(index, int) and -size <= index < size else UNKNOWN
            for index in chosen.reshape(-1).tolist()
        ]
        call.set(0, call.types[0], call.shapes[0], picked)


@rule("GatherElements")
def gather_elements(call: Call) -> None:
    """The shape of the indices."""
    call.set(0, call.dtype(0), call.dims_or_none(1))


@rule("GatherND", typed=0)
def gather_nd(call: Call) -> None:
    """The indices' shape without its last dimension, then what that many indices leave of the data."""
    data, indices = call.dims(0), call.dims(1)
    batch = call.attribute("batch_dims", 0)
    depth = indices[-1]
    if not isinstance(depth, int):
        raise Unknown
    call.shapes[0] = indices[:-1] + data[batch + depth :]


@rule("Pad", typed=0)
def pad(call: Call) -> None:
    """Each dimension and what is added before and after it."""
    dims = list(call.dims(0))
    call.shapes[0] = (UNKNOWN,) * len(dims)
    older = call.version < PADS_ARE_AN_INPUT_FROM["Pad"]
    pads = call.attribute("pads") or call.attribute("paddings") if older else call.elements(1)
    if pads is None:
        raise Unknown
    named = call.version >= 18 and call.has(3)
    axes = each_once(axes_of(call.integers(3), len(dims))) if named else tuple(range(len(dims)))
    if len(pads) != 2 * len(axes):
        raise Unknown
    for position, axis in enumerate(axes):
        dims[axis] = symbolic.add(dims[axis], symbolic.add(pads[position], pads[position + len(axes)]))
    call.shapes[0] = dims


def each_once(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes; raises `Unknown` where one is named twice, which the specification gives no meaning."""
    if len(set(axes)) < len(axes):
        raise Unknown
    return axes


@rule("NonZero")
def nonzero(call: Call) -> None:
    """A row for each axis, a column for each element that is not 0."""
    call.set(0, INT64, (UNKNOWN, UNKNOWN))
    call.shapes[0] = (call.rank(0) or 1, UNKNOWN)


@rule("TopK", typed=0)
def top_k(call: Call) -> None:
    """The axis cut to k."""
    call.set(1, INT64)
    dims = list(call.dims(0))
    axis = axis_of(call.attribute("axis", -1), len(dims))
    count = (call.attribute("k"),) if call.version < 10 else call.elements(1)
    dims[axis] = count[0] if count else UNKNOWN
    call.shapes[0] = dims
    call.set(1, INT64, dims)


@rule("Unique", typed=0)
def unique(call: Call) -> None:
    """As many slices along the axis as there are different ones."""
    for index in (1, 2, 3):
        call.set(index, INT64, (UNKNOWN,))
    axis = call.attribute("axis")
    if axis is None:
        call.shapes[0] = (UNKNOWN,)
        call.set(2, INT64, (symbolic.product(call.dims(0)),))
        return
    dims = list(call.dims(0))
    axis = axis_of(axis, len(dims))
    call.set(2, INT64, (dims[axis],))
    dims[axis] = UNKNOWN
    call.shapes[0] = dims


@rule("Compress", typed=0)
def compress(call: Call) -> None:
    """As many slices along the axis as the condition has ones."""
    axis = call.attribute("axis")
    condition = call.elements(1)
    if axis is None:
        call.shapes[0] = (UNKNOWN,)
        return
    dims = list(call.dims(0))
    axis = axis_of(axis, len(dims))
    dims[axis] = UNKNOWN if condition is None else _chosen(condition, dims[axis])
    call.shapes[0] = dims


def _chosen(condition: Dims, dim: Dim) -> Dim:
    """How many slices a condition takes; what it says beyond the dimension does not count."""
    size = dim if isinstance(dim, int) else len(condition)
    told = condition[:size]
    if not all(isinstance(element, int) for element in told):
        return UNKNOWN
    last = max((place for place, element in enumerate(told, 1) if element), default=0)
    return sum(element == 1 for element in told) if last <= size and symbolic.at_least(dim, last) else UNKNOWN


@rule("OneHot", typed=2)
def one_hot(call: Call) -> None:
    """The indices' shape with a dimension of the depth."""
    dims = call.dims(0)
    axis = axis_of(call.attribute("axis", -1), len(dims) + 1)
    depth = call.elements(1)
    count = depth[0] if depth else UNKNOWN
    call.shapes[0] = (*dims[:axis], count, *dims[axis:])


@rule("Resize", "Upsample", typed=0)
def resize(call: Call) -> None:
    """The sizes, or the dimensions times the scales."""
    dims = call.dims(0)
    call.shapes[0] = (UNKNOWN,) * len(dims)
    scales_at = 1 if call.node.op_type == "Upsample" or call.version < REGION_IS_AN_INPUT_FROM["Resize"] else 2
    axes = axes_of(call.attribute("axes") or range(len(dims)), len(dims))
    result = list(dims)
    if scales_at == 2 and call.has(3):
        if call.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Unknown
        sizes = call.elements(3)
        if sizes is None or len(sizes) != len(axes):
            for axis in axes:
                result[axis] = UNKNOWN
        else:
            for axis, size in zip(axes, sizes, strict=True):
                result[axis] = size
        call.shapes[0] = result
        return
    scales = _scales(call, scales_at)
    if len(scales) != len(axes):
        raise Unknown
    for axis, scale in zip(axes, scales, strict=True):
        result[axis] = _scaled(dims[axis], scale)
    call.shapes[0] = result


def _scales(call: Call, index: int) -> Sequence[float]:
    if call.node.op_type == "Upsample" and call.version < SCALES_ARE_AN_INPUT_FROM["Upsample"]:
        scales: Sequence[float] = call.attribute("scales")
        return scales
    tensor = call.constant(index)
    if tensor is None or tensor.size > MAX_ELEMENTS:
        raise Unknown
    numbers: list[float] = tensor.numpy().reshape(-1).tolist()
    return numbers


def _scaled(dim: Dim, scale: float) -> Dim:
    """floor(dim * scale), as ORT computes it in float32."""
    if scale == int(scale):
        return symbolic.mul(dim, int(scale))
    if isinstance(dim, int):
        return int(np.floor(np.float32(dim) * np.float32(scale)))
    if 0 < scale < 1 and 1 / scale == int(1 / scale) and int(1 / scale) & (int(1 / scale) - 1) == 0:
        return symbolic.floordiv(dim, int(1 / scale))  # exact in binary
    return UNKNOWN


@rule("CenterCropPad", typed=0)
def center_crop_pad(call: Call) -> None:
    """The axes get the sizes of the second input."""
    dims = list(call.dims(0))
    sizes = call.elements(1)
    stated = call.attribute("axes")
    axes = each_once(axes_of(range(len(dims)) if stated is None else stated, len(dims)))
    for position, axis in enumerate(axes):
        dims[axis] = sizes[position] if sizes is not None else UNKNOWN
    call.shapes[0] = dims


@rule("GridSample", typed=0)
def grid_sample(call: Call) -> None:
    """[N, C, ...] of the first input, the spatial dimensions of the grid."""
    data, grid = call.dims(0), call.dims(1)
    call.shapes[0] = data[:2] + grid[1:-1]

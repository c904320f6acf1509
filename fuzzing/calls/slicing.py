"""Calls of ops that take tensors apart, put them together, and pick from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuzzing.calls.draw import INT64_MAX, INT64_MIN, Array, Draw, Drawn, drawing, numpy_of


@drawing("Concat")
def concat(d: Draw) -> Drawn:
    """Along an axis, sizes of which may be 0."""
    shape = list(d.shape(1, 3))
    axis, dtype = d.axis(len(shape)), d.dtype("T")
    parts = []
    for _ in range(d.number(1, 4)):
        if -len(shape) <= axis < len(shape):
            shape[axis] = d.size()
        if d.chance(0.02):
            shape[0] = d.size()
        parts.append(d.tensor(dtype, shape))
    return d.call(parts, axis=None if d.opset < 4 and d.chance(0.5) else axis)


@drawing("Split")
def split(d: Draw) -> Drawn:
    """Told parts, equal parts, from opset 18 on a smaller last one."""
    shape = list(d.shape(1, 3))
    rank = len(shape)
    axis = d.axis(rank)
    count = d.number(1, 4)
    sizes = [d.number(0, 3) for _ in range(count)]
    told = d.chance(0.5)
    if -rank <= axis < rank:
        shape[axis] = sum(sizes) if told else d.one(count * d.number(0, 3), d.number(0, 9))
    if told and d.chance(0.06):
        sizes[0] += d.one(1, -1)
    given = axis if axis or d.chance(0.5) else None
    x = d.tensor(d.dtype("T"), shape)
    if 2 <= d.opset < 13:
        return d.call([x], count, axis=given, split=sizes if told else None)
    parts = d.ints(sizes) if told else None
    number = count if d.opset >= 18 and not told else None
    if number is not None and d.chance(0.03):
        number += 1
    return d.call([x, parts], count, axis=given, num_outputs=number)


_FAR = (2**31 - 1, -(2**31), INT64_MAX, INT64_MAX - 1, INT64_MIN, INT64_MIN + 1)


def _bound(d: Draw, size: int) -> int:
    return d.one(*_FAR) if d.chance(0.25) else d.number(-size - 2, size + 2)


@drawing("Slice")
def slice_(d: Draw) -> Drawn:
    """Bounds around both ends and at those of int64, steps both ways."""
    shape = d.shape(1, 3)
    rank = len(shape)
    axes = d.axes(rank) if d.chance(0.7) else None
    along = [axis % rank for axis in axes] if axes is not None else list(range(d.number(1, rank)))
    starts, ends = ([_bound(d, shape[axis]) for axis in along] for _ in range(2))
    x = d.tensor(d.dtype("T"), shape)
    if d.opset < 10:
        return d.call([x], starts=starts, ends=ends, axes=axes)
    steps = None
    if d.chance(0.7) and (axes is not None or d.chance(0.5)):
        steps = [d.one(1, 1, 2, 3, -1, -1, -2, -3, 9, -9, INT64_MAX, INT64_MIN, -INT64_MAX) for _ in along]
        if steps and d.chance(0.02):
            steps[0] = 0
    narrow = d.one("int64", "int64", "int32")
    if narrow == "int32":
        starts, ends = ([min(max(one, -(2**31)), 2**31 - 1) for one in bounds] for bounds in (starts, ends))
        steps = None if steps is None else [min(max(one, -(2**31)), 2**31 - 1) for one in steps]
    lists = [None if one is None else d.ints(one, narrow) for one in (starts, ends, axes, steps)]
    return d.call([x, *lists])


def _places(d: Draw, shape: tuple[int, ...], size: int) -> Array:
    places = [d.number(-size, size - 1) if size else 0 for _ in range(math.prod(shape))]
    if places and d.chance(0.03):
        places[0] = d.one(size, -size - 1)
    return np.array(places, numpy_of(d.one("int64", "int32"))).reshape(shape)


@drawing("Gather")
def gather(d: Draw) -> Drawn:
    """Indices from both ends, in any shape."""
    shape = d.shape(1, 3)
    axis = d.axis(len(shape))
    size = shape[axis] if -len(shape) <= axis < len(shape) else 1
    return d.call(
        [d.tensor(d.dtype("T"), shape), _places(d, d.shape(0, 2), size)], axis=d.one(axis, axis, axis or None)
    )


@drawing("GatherElements")
def gather_elements(d: Draw) -> Drawn:
    """Indices for each element of the result."""
    shape = d.shape(1, 3)
    axis = d.axis(len(shape))
    size = shape[axis] if -len(shape) <= axis < len(shape) else 1
    where = tuple(d.number(0, dim + (own == axis % len(shape))) for own, dim in enumerate(shape))
    return d.call([d.tensor(d.dtype("T"), shape), _places(d, where, size)], axis=axis)


@drawing("GatherND")
def gather_nd(d: Draw) -> Drawn:
    """With batch dimensions from opset 12 on."""
    shape = d.shape(1, 4, zero=False)
    batch = d.number(0, min(2, len(shape) - 1)) if d.opset >= 12 else 0
    depth = d.number(1, len(shape) - batch)
    outer = (*shape[:batch], *d.shape(0, 2))
    where = [d.number(-dim, dim - 1) for _ in range(math.prod(outer)) for dim in shape[batch : batch + depth]]
    return d.call(
        [d.tensor(d.dtype("T"), shape), np.array(where, np.int64).reshape(*outer, depth)],
        batch_dims=batch if batch or (d.opset >= 12 and d.chance(0.5)) else None,
    )


@drawing("Pad")
def pad(d: Draw) -> Drawn:
    """Elements added and taken away, along some axes from opset 18 on."""
    shape = d.shape(1, 4)
    rank = len(shape)
    axes = d.axes(rank) if d.opset >= 18 and d.chance(0.5) else None
    along = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    pads = [d.one(0, 0, 1, 2, 3, -1, -shape[axis]) for axis in along * 2]
    mode = d.one(None, "constant", "reflect", "edge", "wrap" if d.opset >= 19 else "reflect")
    if d.opset < 11:
        x = d.tensor("float", shape)
        given: dict[str, Any] = {"pads" if d.opset >= 2 else "paddings": pads, "value": d.one(None, 1.5)}
        return d.call([x], mode=mode, **given)
    dtype = d.dtype("T")
    value = d.tensor(dtype, ()) if d.chance(0.4) else None
    inputs = [d.tensor(dtype, shape), d.ints(pads), value, None if axes is None else d.ints(axes)]
    return d.call(inputs, mode=mode)


@drawing("NonZero")
def nonzero(d: Draw) -> Drawn:
    """Of every rank, 0 too."""
    return d.call([d.tensor(d.dtype("T"), d.shape(0, 3))])


@drawing("TopK")
def top_k(d: Draw) -> Drawn:
    """All, some, none."""
    shape = d.shape(1, 3)
    axis = d.axis(len(shape))
    size = shape[axis] if -len(shape) <= axis < len(shape) else 1
    k = d.one(0, size, d.number(0, size), size + 1 if d.chance(0.1) else size)
    x = d.tensor(d.dtype("T"), shape)
    if d.opset < 10:
        return d.call([x], 2, axis=axis, k=k)
    order = {"largest": d.one(None, 0, 1), "sorted": d.one(None, 0, 1)} if d.opset >= 11 else {}
    return d.call([x, d.ints([k])], 2, axis=axis, **order)


@drawing("Unique")
def unique(d: Draw) -> Drawn:
    """Of elements or of slices."""
    shape = d.shape(1, 3)
    return d.call(
        [d.tensor(d.dtype("T"), shape)],
        d.number(1, 4),
        axis=d.axis(len(shape)) if d.chance(0.5) else None,
        sorted=d.one(None, 0, 1),
    )


@drawing("Compress")
def compress(d: Draw) -> Drawn:
    """Conditions as long as the axis, shorter, longer."""
    shape = d.shape(1, 3)
    axis = d.axis(len(shape)) if d.chance(0.7) else None
    size = math.prod(shape) if axis is None else shape[axis] if -len(shape) <= axis < len(shape) else 1
    condition = d.tensor("bool", (max(0, size + d.one(0, 0, -1, 1, 2)),))
    return d.call([d.tensor(d.dtype("T"), shape), condition], axis=axis)


@drawing("OneHot")
def one_hot(d: Draw) -> Drawn:
    """The new axis anywhere."""
    shape = d.shape(0, 3)
    axis = d.one(None, -1, len(shape), d.number(-len(shape) - 1, len(shape)))
    depth = np.array(d.number(1, 4), np.int64)
    places = np.array([d.number(-5, 5) for _ in range(math.prod(shape))], np.int64).reshape(shape)
    return d.call(
        [places, depth if d.chance(0.6) else depth.reshape(1), d.tensor(d.one("float", "int64"), (2,))], axis=axis
    )


@drawing("Resize", "Upsample")
def resize(d: Draw) -> Drawn:
    """Scales and sizes, aspect ratios kept, along some axes."""
    rank = d.one(2, 3, 4)
    shape = (1, 1, *d.shape(2, 2, zero=False))[4 - rank :]
    if d.op == "Resize" and d.opset >= 11 and d.chance(0.4):
        return _not_resized(d, d.tensor("float", shape))
    scales = [
        d.one(1, 1, 2, 0.5, 0.6, 1.5, 0.3, 1 / 3, 2.4) if dim > 1 or d.chance(0.5) else d.one(1, 2, 3) for dim in shape
    ]
    if rank > 2:
        scales[: rank - 2] = [1] * (rank - 2)
    x = d.tensor("float", shape)
    if d.op == "Upsample":
        scales = [max(1, one) for one in scales]
        mode = d.one(None, "nearest", "linear")
        if d.opset < 9:
            if d.opset < 7:
                return d.call([x], height_scale=scales[-2], width_scale=scales[-1], mode=mode)
            return d.call([x], scales=[float(one) for one in scales], mode=mode)
        return d.call([x, np.array(scales, np.float32)], mode=mode)
    if d.opset < 11:
        return d.call([x, np.array(scales, np.float32)], mode=d.one(None, "nearest", "linear"))
    return _resize(d, x, scales)


def _resize(d: Draw, x: Array, scales: list[float]) -> Drawn:
    rank = x.ndim
    axes = None
    if d.opset >= 18 and d.chance(0.5):
        axes = d.one([rank - 2, rank - 1], [-1, -2], [rank - 1], list(range(rank)))
        scales = [scales[axis] for axis in axes]
    mode = d.one(None, "nearest", "linear", "cubic")
    names = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    given: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": d.one(None, *names), "axes": axes}
    if mode in (None, "nearest"):
        given["nearest_mode"] = d.one(None, "floor", "ceil", "round_prefer_floor")
    if d.opset >= 18 and mode in ("linear", "cubic"):
        given["antialias"] = d.one(None, 0, 1)
    roi = np.zeros(0, np.float32) if d.opset < 13 or d.chance(0.3) else None
    if d.chance(0.5):
        return d.call([x, roi, np.array(scales, np.float32)], **given)
    along = range(rank) if axes is None else axes
    sizes = [max(1, int(x.shape[axis] * scale)) for axis, scale in zip(along, scales, strict=True)]
    if d.opset >= 18:
        given["keep_aspect_ratio_policy"] = d.one(None, "stretch", "not_larger", "not_smaller")
    empty = np.zeros(0, np.float32) if d.opset < 13 else None
    return d.call([x, roi, empty, d.ints(sizes)], **given)


def _not_resized(d: Draw, x: Array) -> Drawn:
    empty = np.zeros(0, np.float32) if d.opset < 13 else None
    names = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    mode, at = d.one(None, "nearest", "linear", "cubic"), d.one(None, *names)
    return d.call([x, empty, empty, d.ints(x.shape)], mode=mode, coordinate_transformation_mode=at)


@drawing("CenterCropPad")
def center_crop_pad(d: Draw) -> Drawn:
    """Larger and smaller."""
    shape = d.shape(1, 3)
    axes = d.axes(len(shape)) if d.chance(0.5) else None
    count = len(shape) if axes is None else len(axes)
    return d.call([d.tensor("float", shape), d.ints([d.size(zero=False) for _ in range(count)])], axes=axes)


@drawing("GridSample")
def grid_sample(d: Draw) -> Drawn:
    """In two and three dimensions."""
    spatial = 2 if d.opset < 20 else d.one(2, 3)
    n, c = d.size(zero=False), d.size(zero=False)
    grid = (n, *(d.size() for _ in range(spatial)), spatial)
    x = d.tensor("float", (n, c, *(d.size(zero=False) for _ in range(spatial))))
    return d.call([x, np.clip(d.tensor("float", grid), -1, 1)], align_corners=d.one(None, 0, 1))

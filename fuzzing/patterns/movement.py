"""Slices, reshapes, pads and computed shapes that undo or imply one another."""

from __future__ import annotations

import numpy as np

from fuzzing.families.elementwise import chain
from fuzzing.families.images import convolution, image, pad
from fuzzing.families.reshaping import reshape
from fuzzing.patterns.registry import plant
from fuzzing.writer import BOOL, F32, I64, NUMBERS, Attributes, Writer


@plant
def _tiled_axis(w: Writer) -> None:
    """Slices or Gathers that cover an axis, and a Concat of them."""
    x = w.pick(
        NUMBERS, range(1, 5), lambda one: any(not v and d > 1 for d, v in zip(one.shape, one.varies, strict=True))
    )
    axis = w.one(*(i for i, (d, v) in enumerate(zip(x.shape, x.varies, strict=True)) if not v and d > 1))
    size = x.shape[axis]
    cut = w.usual(size // 2, 1, size - 1)
    ranges = [(0, cut), (w.usual(cut, 0), w.usual(size, 2**63 - 1, size - 1))]
    parts = []
    use_gather = w.chance(0.3)
    for start, end in ranges:
        count = len(range(size)[start:end])
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        if use_gather:
            picked = w.constant(np.arange(size)[start:end], I64)
            parts.append(w.add("Gather", [x, picked], shape, x.varies, axis=axis))
        else:
            low = start - w.one(0, size) if start else 0
            at = axis - w.one(0, x.rank)
            parts.append(w.add("Slice", [x, w.ints(low), w.ints(end), w.ints(at)], shape, x.varies))
    if w.chance(0.6):
        total = sum(part.shape[axis] for part in parts)
        shape = (*x.shape[:axis], total, *x.shape[axis + 1 :])
        w.add("Concat", parts if w.chance(0.8) else parts[::-1], shape, x.varies, axis=axis)


@plant
def _focus(w: Writer) -> None:
    """YOLO's focus: strided slices and a Concat."""
    x = image(w)
    w.require(x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0 and not any(x.varies[2:]))
    parts = []
    for j, i in w.one(((0, 0), (1, 0), (0, 1), (1, 1)), ((0, 0), (0, 1), (1, 0), (1, 1))):
        y = x
        for axis, start in ((2, i), (3, j)):
            halved = [dim // 2 if at == axis else dim for at, dim in enumerate(y.shape)]
            given = [w.ints(start), w.ints(2**31 - 1), w.ints(axis), w.ints(2)]
            y = w.add("Slice", [y, *given], halved, y.varies, show=w.chance(0.03))
        parts.append(y)
    shape = (x.shape[0], 4 * x.shape[1], x.shape[2] // 2, x.shape[3] // 2)
    w.add("Concat", parts, shape, x.varies, axis=1)


@plant
def _slices_of_concat(w: Writer) -> None:
    x = w.pick(NUMBERS, range(1, 5), lambda one: not one.varies[-1])
    y = w.like(x)
    both = w.add("Concat", [x, y], (*x.shape[:-1], 2 * x.shape[-1]), x.varies, axis=-1)
    n = x.shape[-1]
    start, end = w.usual((0, n), (n, 2 * n), (0, 2 * n), (1, n), odds=0.4)
    count = len(range(2 * n)[start:end])
    w.add("Slice", [both, w.ints(start), w.ints(end), w.ints(-1)], (*x.shape[:-1], count), x.varies)


@plant
def _shape_of_the_same(w: Writer) -> None:
    """A Reshape or Expand to a shape that is computed of another value of the same shape."""
    x = w.pick(NUMBERS, range(1, 5))
    other = w.like(x)
    flat = w.add("Reshape", [x, w.ints(-1)], (x.size,), (not x.static,), show=False) if x.size else x
    what = w.random.randrange(3)
    if what == 0:
        w.add("Reshape", [flat, w.whole_shape(other)], x.shape, x.varies)
    elif what == 1:
        w.add("Expand", [x, w.whole_shape(other)])
    else:
        rows = w.dim(other, 0)
        w.add("Slice", [x, w.ints(0), rows, w.ints(0)])


@plant
def _reshaped_there_and_back(w: Writer) -> None:
    x = w.pick(NUMBERS, range(1, 5))
    y = reshape(w, x, show=w.chance(0.2))
    for _ in range(w.one(0, 1, 2)):
        y = chain(w, y, show=False)
    w.add("Reshape", [y, w.whole_shape(x)], x.shape, x.varies)


@plant
def _arithmetic_of_shapes(w: Writer) -> None:
    x = w.pick(NUMBERS, range(1, 5))
    a, b = w.dim(x, 0), w.dim(x, x.rank - 1)
    y = w.either("Mul", a, w.ints(w.one(1, 2)), show=False)
    y = w.elementwise(w.one("Add", "Sub", "Mul"), y, b)
    if w.chance(0.5):
        y = w.elementwise("Div", y, w.ints(w.one(1, 2, 3)))
    if w.chance(0.5):
        y = w.add("Cast", [y], dtype=F32, to=F32, show=False)
        y = w.add(w.one("Floor", "Ceil"), [y], show=False)
        y = w.add("Cast", [y], dtype=I64, to=I64)
    if w.chance(0.4):
        y = w.elementwise("Equal", y, w.ints(w.one(-1, 0, 4)), dtype=BOOL, show=False)
        w.add("Where", [y, w.ints(1), w.ints(2)], (1,), dtype=I64)


@plant
def _pad_conv(w: Writer) -> None:
    x = image(w)
    spatial = [w.one(0, 1, 2) for _ in range(4)]
    first = [0, w.usual(0, 1, odds=0.95)]
    amounts = [*first, *spatial[:2], 0, 0, *spatial[2:]]
    y = pad(w, x, amounts, w.usual(0.0, 1.0), w.usual("constant", "edge", odds=0.9))
    if w.chance(0.6):
        convolution(w, y)
    else:
        extra: Attributes = {"count_include_pad": 1} if w.chance(0.5) else {}
        op = w.usual("AveragePool", "MaxPool", odds=0.6)
        shape = (*y.shape[:2], *(dim - 1 for dim in y.shape[2:]))
        w.add(op, [y], shape, y.varies, kernel_shape=[2, 2], **(extra if op == "AveragePool" else {}))

"""Ops that compute with the sizes of other values."""

from __future__ import annotations

import numpy as np
from onnx import helper

from fuzzing.families.elementwise import chain
from fuzzing.families.movement import clamped
from fuzzing.families.registry import family
from fuzzing.writer import BOOL, F32, FLOATS, I64, NUMBERS, Writer


@family(1)
def _filled(w: Writer) -> None:
    like = w.pick(NUMBERS, range(1, 4))
    dtype = w.one(F32, I64, w.sheet.dtype)
    number = np.array([w.one(0, 1, 2)], helper.tensor_dtype_to_np_dtype(dtype))
    attributes = {"value": helper.make_tensor("", dtype, [1], number)} if dtype != F32 or w.chance(0.6) else {}
    y = w.add("ConstantOfShape", [w.whole_shape(like)], like.shape, like.varies, dtype=dtype, **attributes)
    if like.dtype == dtype and w.chance(0.6):
        w.either(w.one("Add", "Mul", "Sub"), like, y)


@family(1)
def _range(w: Writer) -> None:
    like = w.pick(NUMBERS, range(1, 4))
    axis = w.random.randrange(like.rank)
    n = w.add("Squeeze", [w.dim(like, axis), w.ints(0)], (), show=False)
    y = w.add(
        "Range", [w.constant(np.int64(0)), n, w.constant(np.int64(1))], like.shape[axis : axis + 1],
        like.varies[axis : axis + 1], dtype=I64,
    )  # fmt: skip
    if w.chance(0.5):
        w.add("Gather", [like, y], like.shape, like.varies, axis=axis)


@family(1.5)
def _shape(w: Writer) -> None:
    """Sizes as numbers; and casts before a Shape."""
    x = w.pick((*NUMBERS, BOOL))
    if w.chance(0.5) and x.dtype in NUMBERS:
        x = w.add("Cast", [x], dtype=F32, to=F32, show=False) if w.chance(0.5) else chain(w, x, show=False)
    if w.chance(0.3):
        w.add("Size", [x], (), dtype=I64)
    elif w.opset >= 15 and w.chance(0.5):
        start, end = w.random.randint(-x.rank - 1, x.rank), w.random.randint(-x.rank - 1, x.rank + 1)
        count = len(x.shape[slice(*clamped(start, end, 1, x.rank))]) if x.rank else 0
        w.add("Shape", [x], (count,), dtype=I64, start=start, end=end)
    else:
        w.show(w.whole_shape(x))


@family(1)
def _shape_number(w: Writer) -> None:
    """A dimension that scales numbers."""
    x = w.pick(FLOATS, range(1, 5))
    n = w.dim(x, w.random.randrange(x.rank))
    n = w.add("Cast", [n], dtype=x.dtype, to=x.dtype, show=False)
    if w.chance(0.5):
        n = w.add("Sqrt", [n], show=False)
    w.elementwise(w.one("Mul", "Add"), x, n)

"""Ops that move elements: Transpose, Concat, Split, Slice and Gather."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fuzzing.families.elementwise import chain
from fuzzing.families.reductions import reduce, some_axes
from fuzzing.families.registry import family
from fuzzing.writer import BOOL, F32, F64, FLOATS, I32, I64, NUMBERS, STRING, Attributes, Value, Writer

ANY: Final = (*NUMBERS, BOOL)


@family(4)
def _transpose(w: Writer) -> None:
    x = w.pick(ANY, range(1, 6))
    for _ in range(w.one(1, 1, 2)):
        perm = list(range(x.rank))
        w.random.shuffle(perm)
        if x.rank == 4 and w.chance(0.5):
            perm = list(w.one((0, 2, 3, 1), (0, 3, 1, 2)))
        x = transpose(w, x, perm, show=w.chance(0.6))
        if w.chance(0.4):
            x = chain(w, x, show=w.chance(0.3))


def transpose(w: Writer, x: Value, perm: Sequence[int], *, show: bool = True) -> Value:
    """Write a Transpose."""
    turns_all = list(perm) == list(range(x.rank))[::-1]
    given: Attributes = {} if turns_all and (not perm or w.chance(0.5)) else {"perm": list(perm)}
    return w.add("Transpose", [x], [x.shape[i] for i in perm], [x.varies[i] for i in perm], show=show, **given)


@family(3)
def _transposed_work(w: Writer) -> None:
    """Something between two transposes that undo one another, or nearly."""
    x = w.pick(FLOATS, range(2, 5), lambda one: one.size > 0)
    perm = list(range(x.rank))
    w.random.shuffle(perm)
    back = [perm.index(i) for i in range(x.rank)]
    y = transpose(w, x, perm, show=w.chance(0.1))
    for _ in range(w.one(1, 2, 3)):
        what = w.random.randrange(7)
        if what < 2:
            y = chain(w, y, show=False)
        elif what == 2:
            y = w.either(w.one("Add", "Mul"), y, w.like(y), show=False)
        elif what == 3:
            axis = w.random.randrange(y.rank)
            size = 1 if y.varies[axis] else y.shape[axis]
            y = w.either("Add", y, w.noise((size, *(1,) * (y.rank - axis - 1)), y.dtype), show=False)
        elif what == 4:
            y = reduce(w, w.one("ReduceMean", "ReduceSum", "ReduceMax"), y, some_axes(w, y), show=False)
        elif what == 5:
            y = w.add("Softmax", [y], axis=w.random.randrange(y.rank), show=False)
        else:
            y = _concatenated(w, y)
    transpose(w, y, w.usual(back, perm))


def _concatenated(w: Writer, x: Value, axis: int | None = None) -> Value:
    w.require(x.rank > 0)
    axis = w.random.randrange(x.rank) if axis is None else axis
    parts = [x, *(w.like(x) for _ in range(w.one(1, 1, 2)))]
    if w.chance(0.2):
        parts = parts[:1]
    if w.chance(0.15) and x.static:
        parts.insert(
            w.random.randrange(2), w.noise([0 if i == axis else dim for i, dim in enumerate(x.shape)], x.dtype)
        )
    shape = list(x.shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return w.add("Concat", parts, shape, x.varies, axis=axis - w.one(0, x.rank))


@family(2)
def _concat(w: Writer) -> None:
    _concatenated(w, w.pick((*ANY, STRING), range(1, 6)))


@family(2)
def _split(w: Writer) -> None:
    x = w.pick(ANY, range(1, 5), lambda one: any(not v and d > 0 for d, v in zip(one.shape, one.varies, strict=True)))
    axis = w.one(*(i for i, (d, v) in enumerate(zip(x.shape, x.varies, strict=True)) if not v and d > 0))
    size = x.shape[axis]
    parts = [size]
    if w.chance(0.8):
        cut = w.random.randint(0, size)
        parts = [cut, size - cut] if w.chance(0.7) or size < 3 else [1, size - 2, 1]
    equal = size % 2 == 0 and w.chance(0.3)
    if equal:
        parts = [size // 2] * 2
    results = [(x.dtype, (*x.shape[:axis], part, *x.shape[axis + 1 :]), x.varies) for part in parts]
    at = axis - w.one(0, x.rank)
    if equal and w.chance(0.6):
        count: Attributes = {"num_outputs": 2} if w.opset >= 18 else {}
        made = w.node("Split", [x], results, axis=at, **count)
    else:
        made = w.node("Split", [x, w.ints(*parts)], results, axis=at)
    if w.chance(0.4):
        order = made if w.chance(0.7) else made[::-1]
        w.add("Concat", order, x.shape, x.varies, axis=w.usual(at, axis))
    w.show(*made)


def _bounds(w: Writer, size: int) -> tuple[int, int, int]:
    step_ = w.usual(1, 2, -1, odds=0.75)
    if step_ < 0:
        return w.one(-1, size - 1, 2**31), w.one(-(2**31), -size - 1, 0), step_
    return w.one(0, 0, 0, 1, -size, -1), w.one(size, 2**31 - 1, 2**63 - 1, -1, size - 1, 1), step_


@family(3)
def _slice(w: Writer) -> None:
    x = w.pick((*ANY, STRING), range(1, 6))
    axes = w.random.sample(range(x.rank), w.one(1, 1, min(2, x.rank)))
    if w.chance(0.2):
        axes = list(range(len(axes)))
    shape, varies = list(x.shape), list(x.varies)
    starts, ends, steps = [], [], []
    for axis in axes:
        start, end, step_ = _bounds(w, x.shape[axis])
        shape[axis] = len(range(x.shape[axis])[slice(*clamped(start, end, step_, x.shape[axis]))])
        starts.append(start)
        ends.append(end)
        steps.append(step_)
    kind = w.usual(I64, I32) if max(map(abs, ends)) < 2**31 and max(map(abs, starts)) < 2**31 else I64
    given: list[Value | None] = [w.ints(*starts, dtype=kind), w.ints(*ends, dtype=kind)]
    named = axes != list(range(len(axes))) or w.chance(0.7)
    given.append(w.ints(*(a - w.one(0, x.rank) for a in axes), dtype=kind) if named else None)
    if any(one != 1 for one in steps) or w.chance(0.3):
        given.append(w.ints(*steps, dtype=kind))
    w.add("Slice", [x, *given], shape, varies)


def clamped(start: int, end: int, step_: int, size: int) -> tuple[int, int | None, int]:
    """ONNX's bounds as Python's."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step_ < 0:
        start, stop = min(max(start, -1), size - 1), min(max(end, -1), size - 1)
        if start < 0:
            return 0, 0, 1
        return start, None if stop < 0 else stop, step_
    return min(max(start, 0), size), min(max(end, 0), size), step_


@family(1)
def _dynamic_slice(w: Writer) -> None:
    """The first rows, as many as another tensor has."""
    x = w.pick(NUMBERS, range(1, 5))
    y = w.pick(NUMBERS, range(1, 5), lambda one: one.shape[0] == x.shape[0] and one.varies[0] == x.varies[0])
    w.add("Slice", [x, w.ints(0), w.dim(y, 0), w.ints(0)], x.shape, x.varies)


def indices(w: Writer, shape: Sequence[int], size: int) -> Value:
    """Constant indices into an axis, from either end."""
    numbers = w.sheet.numbers.integers(-size if w.chance(0.5) else 0, size, tuple(shape))
    return w.constant(numbers, w.one(I64, I64, I32))


@family(3)
def _gather(w: Writer) -> None:
    x = w.pick((*ANY, STRING), range(1, 5), lambda one: one.size > 0)
    axis = w.random.randrange(x.rank)
    size = 1 if x.varies[axis] else x.shape[axis]
    picked = indices(w, w.one((), (1,), (2,), (1, 2), (0,), (size,)), size)
    if not x.varies[axis] and w.chance(0.3):
        count = w.random.randint(0, size)
        first = w.constant(np.int64(w.one(0, 0, -count)))
        limit = w.elementwise("Add", first, w.constant(np.int64(count)), show=False)
        picked = w.add("Range", [first, limit, w.constant(np.int64(1))], (count,), dtype=I64, show=False)
    shape = (*x.shape[:axis], *picked.shape, *x.shape[axis + 1 :])
    varies = (*x.varies[:axis], *picked.varies, *x.varies[axis + 1 :])
    w.add("Gather", [x, picked], shape, varies, axis=axis - w.one(0, x.rank))


@family(1)
def _gather_forms(w: Writer) -> None:
    x = w.pick((F32, F64, I64), range(1, 4), lambda one: one.size > 0 and one.static)
    if w.chance(0.5):
        axis = w.random.randrange(x.rank)
        picked = indices(w, x.shape, x.shape[axis])
        if w.chance(0.5):
            w.add("GatherElements", [x, picked], axis=axis)
        else:
            order = np.argsort(w.sheet.numbers.random(x.shape), axis=axis)
            w.add("ScatterElements", [x, w.constant(order), w.like(x)], axis=axis)
        return
    picked = w.constant(w.sheet.numbers.integers(0, x.shape[0], (2, 1)))
    w.add("GatherND", [x, picked], (2, *x.shape[1:]), (False,) * x.rank)

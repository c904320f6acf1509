"""Ops that give elements another shape, and those that repeat them to fill it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuzzing.families.elementwise import broadcasts
from fuzzing.families.movement import ANY
from fuzzing.families.reductions import reduced
from fuzzing.families.registry import family
from fuzzing.writer import BOOL, NUMBERS, STRING, Attributes, Value, Writer


@family(4)
def _reshape(w: Writer) -> None:
    x = w.pick((*ANY, STRING), range(6))
    for _ in range(w.one(1, 1, 1, 2, 3)):
        x = _moved(w, x)


def _moved(w: Writer, x: Value) -> Value:
    """One of the ops that only rename elements."""
    what = w.one("reshape", "reshape", "reshape", "unsqueeze", "squeeze", "flatten", "computed", "same")
    show = w.chance(0.5)
    if what == "unsqueeze":
        w.require(x.rank < 5)
        at = w.random.randrange(x.rank + 1)
        shape, varies = list(x.shape), list(x.varies)
        shape.insert(at, 1)
        varies.insert(at, False)
        return w.add("Unsqueeze", [x, w.ints(at - w.one(0, x.rank + 1))], shape, varies, show=show)
    if what == "squeeze":
        ones = [i for i, dim in enumerate(x.shape) if dim == 1 and not x.varies[i]]
        w.require(bool(ones))
        at = w.random.choice(ones)
        shape, varies = reduced(x, [at], False)
        return w.add("Squeeze", [x, w.ints(at - w.one(0, x.rank))], shape, varies, show=show)
    if what == "flatten":
        axis = w.random.randint(0, x.rank)
        shape = [int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))]
        return w.add("Flatten", [x], shape, [any(x.varies[:axis]), any(x.varies[axis:])], show=show, axis=axis)
    if what == "same":
        return w.add("Reshape", [x, w.whole_shape(x)], show=show)
    return reshape(w, x, computed=what == "computed", show=show)


def reshape(w: Writer, x: Value, *, computed: bool = False, show: bool = True) -> Value:
    """Write a Reshape that merges and splits dimensions."""
    groups: list[tuple[int, bool, list[int]]] = []  # size, varies, the axes that it comes from
    for axis, (dim, vary) in enumerate(zip(x.shape, x.varies, strict=True)):
        if groups and w.chance(0.3):
            size, varied, axes = groups[-1]
            groups[-1] = (size * dim, varied or vary, [*axes, axis])
        elif not vary and dim > 1 and dim % 2 == 0 and w.chance(0.3):
            groups += [(2, False, []), (dim // 2, False, [])]
        elif not vary and dim == 1 and w.chance(0.3):
            continue
        else:
            groups.append((dim, vary, [axis]))
        if w.chance(0.1):
            groups.append((1, False, []))
    w.require(len(groups) < 6)
    target: list[int | Value] = []
    free = x.size > 0 or w.chance(0.1)
    for i, (size, vary, axes) in enumerate(groups):
        stays = axes == [i]
        if vary:
            if stays and not computed and w.chance(0.7):
                target.append(0)
            elif free and not (computed and w.chance(0.6)):
                target.append(-1)
                free = False
            else:
                target.append(_multiplied(w, x, axes))
        elif free and w.chance(0.15):
            target.append(-1)
            free = False
        elif stays and w.chance(0.25) and not computed:
            target.append(0)
        else:
            target.append(size)
    allowzero: Attributes = {}
    if 0 in x.shape and all(isinstance(one, int) and one > 0 for one in target) and not free:
        raise_ = True
        w.require(not raise_)
    if w.opset >= 14 and 0 not in target and w.chance(0.15) and -1 not in target:
        allowzero = {"allowzero": 1}
    if not allowzero and any(size == 0 and not vary and axes != [i] for i, (size, vary, axes) in enumerate(groups)):
        w.require(w.opset >= 14 and -1 not in target)
        target = [size if one == 0 else one for one, (size, _, _) in zip(target, groups, strict=True)]
        w.require(not any(vary for _, vary, _ in groups))
        allowzero = {"allowzero": 1}
    where = _target(w, target, computed)
    return w.add(
        "Reshape", [x, where], [size for size, _, _ in groups], [vary for _, vary, _ in groups], show=show, **allowzero
    )


def _multiplied(w: Writer, x: Value, axes: Sequence[int]) -> Value:
    result = w.dim(x, axes[0]) if axes else w.ints(1)
    for axis in axes[1:]:
        result = w.either("Mul", result, w.dim(x, axis), show=False)
    return result


def _target(w: Writer, target: Sequence[int | Value], computed: bool) -> Value:
    if not computed and all(isinstance(one, int) for one in target):
        return w.ints(*(one for one in target if isinstance(one, int)))
    parts: list[Value] = []
    pending: list[int] = []
    for one in target:
        if isinstance(one, int):
            pending.append(one)
            continue
        if pending:
            parts.append(w.ints(*pending))
            pending = []
        parts.append(one)
    if pending or not parts:
        parts.append(w.ints(*pending))
    return w.add("Concat", parts, (len(target),), show=False, axis=0)


@family(2)
def _expand(w: Writer) -> None:
    x = w.pick(ANY, range(5))
    if w.chance(0.5):
        like = w.pick(NUMBERS, where=lambda one: broadcasts(one, x))
        shape = np.broadcast_shapes(x.shape, like.shape)
        varies = [any(one.varies[-i] for one in (x, like) if one.rank >= i) for i in range(len(shape), 0, -1)]
        w.add("Expand", [x, w.whole_shape(like)], shape, varies)
    else:
        to = [1 if vary or w.chance(0.4) else dim if dim != 1 else w.one(1, 2) for dim, vary in dimensions(x)]
        shape = np.broadcast_shapes(x.shape, tuple(to))
        w.add("Expand", [x, w.ints(*to)], shape, x.varies)


def dimensions(x: Value) -> list[tuple[int, bool]]:
    """The dimensions, each with whether it varies."""
    return list(zip(x.shape, x.varies, strict=True))


@family(1)
def _tile(w: Writer) -> None:
    x = w.pick((*NUMBERS, BOOL), range(1, 5))
    times = [w.usual(1, 2, 0, odds=0.75) for _ in x.shape]
    w.add("Tile", [x, w.ints(*times)], [dim * n for dim, n in zip(x.shape, times, strict=True)], x.varies)

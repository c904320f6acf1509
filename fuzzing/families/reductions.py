"""Reductions, and ops along one axis that keep or shrink it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuzzing.families.registry import family
from fuzzing.writer import F16, F32, F64, FLOATS, I32, I64, Attributes, Value, Writer


def reduced(x: Value, axes: Sequence[int], keep: bool) -> tuple[list[int], list[bool]]:
    """The shape that a reduction leaves, and what of it varies."""
    gone = {axis % x.rank for axis in axes} if x.rank else set()
    shape = [1 if i in gone else dim for i, dim in enumerate(x.shape) if keep or i not in gone]
    varies = [i not in gone and vary for i, vary in enumerate(x.varies) if keep or i not in gone]
    return shape, varies


def reduce(w: Writer, op: str, x: Value, axes: Sequence[int] | None, *, keep: bool = True, show: bool = True) -> Value:
    """Write a reduction in the spelling of the opset; all axes if None."""
    shape, varies = reduced(x, range(x.rank) if axes is None else axes, keep)
    attributes: Attributes = {} if keep and w.chance(0.5) else {"keepdims": int(keep)}
    if axes is None:
        return w.add(op, [x], shape, varies, show=show, **attributes)
    if w.opset >= (13 if op == "ReduceSum" else 18):
        return w.add(op, [x, w.ints(*axes)], shape, varies, show=show, **attributes)
    return w.add(op, [x], shape, varies, show=show, axes=list(axes), **attributes)


def some_axes(w: Writer, x: Value) -> list[int]:
    """One or two axes, counted from either end."""
    w.require(x.rank > 0)
    axes = w.random.sample(range(x.rank), w.one(1, 1, min(2, x.rank)))
    return [axis - w.one(0, x.rank) for axis in axes]


@family(3)
def _reduce(w: Writer) -> None:
    x = w.pick((F32, F32, F64, F16, I32, I64), range(1, 6))
    axes = None if w.chance(0.15) else some_axes(w, x)
    ops = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"]
    if x.dtype in FLOATS:
        ops += ["ReduceL2", "ReduceL1", "ReduceSumSquare", "ReduceLogSumExp"]
    op = w.one(*ops)
    w.require(x.size > 0)
    if w.chance(0.1):
        x = w.add("Unsqueeze", [x, w.ints(0)], (1, *x.shape), (False, *x.varies), show=False)
        axes = [0]
    y = reduce(w, op, x, axes, keep=w.chance(0.6))
    if w.chance(0.2) and y.rank:
        reduce(w, w.usual(op, "ReduceMax"), y, some_axes(w, y), keep=w.chance(0.5))


@family(0.5)
def _no_axes(w: Writer) -> None:
    x = w.pick(FLOATS, range(1, 5))
    if w.opset >= 18 or w.chance(0.5):
        op = "ReduceSum" if w.opset < 18 else w.one("ReduceSum", "ReduceMean")
        noop = w.chance(0.7)
        shape, varies = (x.shape, x.varies) if noop else reduced(x, range(x.rank), True)
        w.require(x.size > 0)
        axes = w.ints() if w.chance(0.5) else None
        w.add(op, [x, axes], shape, varies, noop_with_empty_axes=int(noop))


@family(0.7)
def _arg(w: Writer) -> None:
    x = w.pick((F32, F64, I32), range(1, 5), lambda one: one.size > 0)
    axis, keep = w.random.randrange(x.rank), w.chance(0.5)
    shape, varies = reduced(x, [axis], keep)
    w.add(w.one("ArgMax", "ArgMin"), [x], shape, varies, dtype=I64, axis=axis - w.one(0, x.rank), keepdims=int(keep))


@family(0.5)
def _top(w: Writer) -> None:
    x = w.pick((F32, F64, I64), range(1, 5), lambda one: one.shape[-1] > 0 and not one.varies[-1])
    k = w.random.randint(1, x.shape[-1])
    results = [(dtype, (*x.shape[:-1], k), x.varies) for dtype in (x.dtype, I64)]
    w.show(*w.node("TopK", [x, w.ints(k)], results, axis=-1))


@family(0.5)
def _cumulate(w: Writer) -> None:
    x = w.pick((F32, F64, I64), range(1, 5))
    axis = w.constant(np.int64(w.random.randrange(x.rank)))
    w.add("CumSum", [x, axis], exclusive=w.one(0, 1), reverse=w.one(0, 1))

"""The operands of patterns: mostly what the passes look for, now and then something close to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuzzing.writer import F16, F32, F64, Value, Writer


def constant_row(w: Writer, x: Value, *, odds: float = 0.85) -> Value:
    """A constant row of the last dimension, or something that is nearly one."""
    w.require(x.rank > 0 and not x.varies[-1])
    n = x.shape[-1]
    wrong: list[tuple[int, ...]] = [(1,), (), (1, n), (1,) * x.rank + (n,)]
    if x.rank > 1 and not x.varies[-2]:
        wrong += [(x.shape[-2], 1), (x.shape[-2], n)]
    return w.noise(w.usual((n,), *wrong, odds=odds), x.dtype)


def constant_number(w: Writer, right: float, x: Value, *wrong: float) -> Value:
    """A constant in one of its shapes; now and then another number."""
    shape: tuple[int, ...] = w.usual((), (1,), (1,) * x.rank, (1,) * (x.rank + 1), odds=0.7)
    return w.constant(np.full(shape, w.usual(right, *wrong, right * 1.01, -right, odds=0.9)), x.dtype)


def features(w: Writer, dtypes: Sequence[int] = (F32, F32, F32, F64, F16)) -> Value:
    """A value whose last dimension is fixed and not zero."""
    return w.pick(dtypes, range(1, 5), lambda one: not one.varies[-1] and one.shape[-1] > 0)


def fits(*values: Value) -> bool:
    """Whether the shapes of some values broadcast."""
    try:
        np.broadcast_shapes(*(value.shape for value in values))
    except ValueError:
        return False
    return True

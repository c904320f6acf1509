"""Outputs that are neither clearly right nor clearly wrong, decided by what perturbed copies of the original give."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ortopt.verification.comparison import Array, OutputRow, error_text, zero_text
from ortopt.verification.tolerances import LIMITS

TIMES_THE_NOISE: Final = 8
"""How many times the original's own noise an error may be: both are the greatest of many, one run each."""

TIMES_THE_STEPS: Final = 1.5
"""The same where every quantizer of a copy has rounded otherwise: a right result rounds otherwise at few places."""

STEPS_CAP: Final = 2.0
"""What no steps of quantizers excuse, as a share of the output's scale, where a result is right without rounding."""

_MEAN_CAP: Final = 0.125
"""The same for the root mean square of the errors, as a share of the greatest that is excused."""

_FEW: Final = 0.01
"""The share of an output's integers that may come out differently where the original itself is undecided."""


def _alike(expected: Any, others: Sequence[Any]) -> list[Array]:
    """The arrays among what copies gave that have the shape of what was expected."""
    return [
        other for other in others if isinstance(other, np.ndarray) and other.shape == getattr(expected, "shape", None)
    ]


def decide_by_noise(
    row: OutputRow,
    noise: float,
    mean: float,
    zeros: int = 0,
    *,
    local: float = 0.0,
    extreme: bool = False,
    times: float = TIMES_THE_NOISE,
    cap: float | None = None,
) -> OutputRow:
    """A doubtful row of floats, once the model's own noise is known.

    Args:
        row: The row.
        noise: The greatest error that the original makes itself, relative to the scale.
        mean: The root mean square of these errors.
        zeros: How many zeros of copies of the original have another sign than its own, or any number where its zeros
            are sums that cancel out (`zeros_cancel_out`).
        local: The greatest error that the original makes itself, relative to its surroundings.
        extreme: Whether no error is too large to be noise.
        times: How many times the noise an error may be.
        cap: The greatest error that noise excuses; None goes by the row's dtype.
    """
    limits = LIMITS[row.tolerance]
    usual = row.tolerance
    allowed = min(max(limits.sure, times * noise), math.inf if extreme else cap or limits.cap)
    mean_allowed = max(limits.sure, times * mean)
    if cap is not None:
        mean_allowed = min(mean_allowed, _MEAN_CAP * cap)
    row = dataclasses.replace(row, tolerance=allowed, noise=noise, doubtful=False, agrees=True, detail="")
    if row.worst > allowed:
        detail = f"{error_text(row)} (the model's own noise is {noise:.2g})"
        return dataclasses.replace(row, agrees=False, detail=detail)
    if row.mean > mean_allowed:
        detail = f"the errors are {row.mean:.2g} of the output's scale on average, where {mean_allowed:.2g} is allowed"
        return dataclasses.replace(row, agrees=False, detail=f"{detail} (the model's own noise is {mean:.2g})")
    if row.local > max(usual, times * local):
        detail = f"{row.local_detail}, where the output is uneven (the model's own noise is {local:.2g} there)"
        return dataclasses.replace(row, agrees=False, detail=detail)
    if row.zeros and not zeros:
        return dataclasses.replace(row, agrees=False, detail=zero_text(row))
    return row


def zeros_cancel_out(expected: Any, got: Any, others: Sequence[Any]) -> bool:
    """Whether zeros that have come out with the other sign are sums that cancel out: their sign means nothing.

    Args:
        expected: What the original gave.
        got: What the result gave.
        others: What copies of the original gave whose inputs and weights differ in their last place.

    Returns:
        Whether at each such place a copy gives something else than that zero; zeros that are there for another reason,
        as those of a Relu, stay.
    """
    arrays = _alike(expected, others)
    if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f" or expected.dtype != got.dtype:
        return False
    turned = (expected == 0) & (got == 0) & (np.signbit(expected) != np.signbit(got))
    moved = np.zeros_like(turned)
    for array in arrays:
        moved |= (array != 0) | (np.signbit(array) != np.signbit(expected))
    return bool(moved[turned].all())


def decide_by_matches(row: OutputRow, expected: Any, got: Any, others: Sequence[Any]) -> OutputRow:
    """A row of integers, booleans or strings that differ, once it is known what copies of the original give.

    Args:
        row: The row.
        expected: What the original gave.
        got: What the result gave.
        others: What copies of the original gave whose inputs and weights differ in their last place.

    Returns:
        One that agrees if at each place one of the copies gives what the result gives, and such places are few: a
        hundredth, or one.
    """
    arrays = _alike(expected, others)
    if not isinstance(expected, np.ndarray) or not arrays:
        return dataclasses.replace(row, doubtful=False)
    different = np.atleast_1d(np.asarray(expected != got))
    count = int(different.sum())
    explained = np.zeros_like(different)
    for array in arrays:
        explained |= np.atleast_1d(np.asarray(array == got))
    if count > max(1, _FEW * different.size) or not explained[different].all():
        return dataclasses.replace(row, doubtful=False)
    share = count / different.size
    return dataclasses.replace(
        row, worst=share, tolerance=_FEW, mean=share, noise=share, agrees=True, detail="", doubtful=False
    )


def accept_explained_infinities(expected: Any, got: Any, others: Sequence[Any]) -> Any:
    """What was expected, with what was got wherever NaN or infinities tell the two apart but a copy gives such too.

    Args:
        expected: What the original gave.
        got: What the result gave.
        others: What copies of the original gave.
    """
    if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f" or expected.shape != got.shape:
        return expected
    differ = _kinds(expected) != _kinds(got)
    explained = np.zeros_like(differ)
    for other in others:
        if isinstance(other, np.ndarray) and other.shape == expected.shape and other.dtype.kind == "f":
            explained |= _kinds(other) == _kinds(got)
    return np.where(differ & explained, got, expected)


def _kinds(array: Array) -> Array:
    """The kind of each number: finite, NaN, or one of the infinities."""
    return np.where(np.isnan(array), 2, np.where(np.isinf(array), np.sign(array), 3))


def decide_by_steps(row: OutputRow, expected: Any, got: Any, others: Sequence[Any]) -> OutputRow:
    """A row of quantized integers that differ: right if copies whose quantizers round otherwise are as far away.

    Args:
        row: The row.
        expected: What the original gave.
        got: What the result gave.
        others: What these copies gave.
    """
    arrays = _alike(expected, others)
    if not isinstance(expected, np.ndarray) or expected.dtype != got.dtype or expected.shape != got.shape:
        return row
    spread = max((_distance(expected, array) for array in arrays), default=0.0)
    apart = _distance(expected, got)
    if apart > max(1.0, TIMES_THE_STEPS * spread):
        return row
    share = float(np.mean(expected != got))
    range_ = float(np.iinfo(expected.dtype).max) - float(np.iinfo(expected.dtype).min)
    return dataclasses.replace(
        row,
        worst=apart / range_,
        tolerance=max(1.0, TIMES_THE_STEPS * spread) / range_,
        mean=share / range_,
        noise=spread / range_,
        agrees=True,
        detail="",
        doubtful=False,
    )


def decide_by_distance(row: OutputRow, expected: Any, got: Any, others: Sequence[Any]) -> OutputRow:
    """A row of integers that differ on extreme inputs: right if copies of the original are as far from it.

    Args:
        row: The row.
        expected: What the original gave.
        got: What the result gave.
        others: What copies of the original gave.
    """
    arrays = _alike(expected, others)
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "iub" or not arrays:
        return dataclasses.replace(row, doubtful=False)
    spread = max(_distance(expected, array) for array in arrays)
    if _distance(expected, got) > TIMES_THE_NOISE * spread:
        return dataclasses.replace(row, doubtful=False)
    return dataclasses.replace(row, worst=0.0, agrees=True, detail="", doubtful=False)


def _distance(array: Array, other: Array) -> float:
    return float(np.abs(array.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))

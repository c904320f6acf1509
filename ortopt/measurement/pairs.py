"""Times one model against another, in processes that hold both: until it is clear which is faster, or time is over."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, TypeVar

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.measurement.asking import MeasurementBudget, ask

CONFIDENCE: Final = 0.95
"""How sure it is that an interval holds the median."""

_T = TypeVar("_T")

SLOWER: Final = 0.98
"""What has an interval that ends below this on one of the inputs loses there, and is not taken."""

_MIN_PAIRS: Final = 12
_CLEAR: Final = 0.02
"""By how much an interval must be away from 1, or how narrow it must be, to be clear."""

BRIEF: Final = MeasurementBudget(repeat=40, seconds=0.5, threads=1, patience=120.0)
"""How two models are timed against each other where nobody says otherwise; the processes have more patience by the
time that calls take."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a model is, compared with another one on the same inputs.

    Attributes:
        low: The lower end of an interval that holds the median with a confidence of 95 %.
        median: The median of the other's time over this one's: more than 1 is faster.
        high: The upper end of the interval.
        seconds: The median of the other's time.
    """

    low: float
    median: float
    high: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models that are timed against each other on the same inputs.

    Attributes:
        first: The other one.
        second: The model.
        inputs: Folders of stored inputs (`ortopt.verification.input_sets`).
        as_loaded: Whether ONNX Runtime optimizes both when it loads them.
        cold: Whether caches are emptied before each call.
    """

    first: Path
    second: Path
    inputs: tuple[Path, ...]
    as_loaded: bool = True
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process has measured of a pair on some inputs.

    Attributes:
        ratios: The first one's time over the second one's, call by call.
        seconds: The median of the first one's time.
        error: Why there are none; empty if there are.
    """

    ratios: tuple[float, ...] = ()
    seconds: float = 0.0
    error: str = ""

    @staticmethod
    def of(first: Sequence[float], second: Sequence[float]) -> Sample:
        """What the seconds of the calls of both say.

        Args:
            first: Those of the first one.
            second: Those of the second one, of which each was called beside one of the first.
        """
        ratios = tuple(one / max(other, 1e-9) for one, other in zip(first, second, strict=True) if one > 0)
        return Sample(ratios, sorted(first)[len(first) // 2]) if ratios else Sample(error="no call took any time")


@dataclass(slots=True, kw_only=True)
class Series:
    """What several processes have measured of a pair on some inputs.

    Attributes:
        ratios: The first one's time over the second one's, call by call.
        seconds: Medians of the first one's time, one a process.
        error: Why there are none; empty if there are.
    """

    ratios: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    error: str = ""

    def add(self, taken: Sample) -> None:
        """Add what a process has measured."""
        self.error = "" if self.ratios else taken.error
        self.ratios += taken.ratios
        if taken.ratios:
            self.seconds.append(taken.seconds)

    @property
    def speed(self) -> Speed | None:
        """How fast the second one is; None where that was not measured."""
        return Speed(*interval(self.ratios), statistics.median(self.seconds)) if self.ratios else None

    @property
    def is_clear(self) -> bool:
        """Whether more calls would say nothing new: an interval is on one side of 1, or narrow around it."""
        speed = self.speed
        if speed is None:
            return bool(self.error)
        away = speed.low > 1 + _CLEAR or speed.high < 1 - _CLEAR
        return len(self.ratios) >= _MIN_PAIRS and (away or speed.high - speed.low < _CLEAR)


def compare(
    first: Path,
    second: Path,
    inputs: Sequence[Path],
    budget: MeasurementBudget = BRIEF,
    *,
    deadline: float = math.inf,
    token: CancellationToken = NEVER,
) -> tuple[Speed, ...] | None:
    """Time a model against another one, in processes that hold both, until it is clear which is faster.

    Args:
        first: The other one.
        second: The model.
        inputs: Folders of stored inputs.
        budget: How much is measured, at most.
        deadline: When no further process is started, on the clock of `time.monotonic`.
        token: Cancellation token.

    Returns:
        The speed on each of the inputs; None where one of the models does not run, or took too long.
    """
    every = [Series() for _ in inputs]
    for number in range(budget.rounds):
        if number and time.monotonic() > deadline:
            break
        swapped = number % 2 == 1  # what is opened first may have the better memory
        for series, taken in zip(
            every, sample([Pair(first, second, tuple(inputs))], budget, swapped=swapped, token=token), strict=True
        ):
            if taken.error:
                return None
            series.add(taken)
        if number and all(series.is_clear for series in every):
            break
    return tuple(speed for series in every if (speed := series.speed) is not None)


def sample(
    pairs: Sequence[Pair], budget: MeasurementBudget, *, swapped: bool = False, token: CancellationToken = NEVER
) -> list[Sample]:
    """Time several pairs of models, one after the other in one process.

    Args:
        pairs: The pairs.
        budget: How much is measured of each.
        swapped: Whether the second model of a pair is opened first.
        token: Cancellation token.

    Returns:
        What was measured of each on each of its inputs; where the process died, errors.
    """
    each = [
        {
            "models": [str(path) for path in _in_order(pair.first, pair.second, swapped)],
            "inputs": [str(folder) for folder in pair.inputs],
            "as_loaded": pair.as_loaded,
            "cold": pair.cold,
        }
        for pair in pairs
    ]
    patience = budget.patience + 2 * budget.seconds * sum(len(pair.inputs) for pair in pairs)
    samples: list[Sample] = []
    for pair, answer in zip(pairs, ask("time", each, replace(budget, patience=patience), token), strict=True):
        if "error" in answer:
            samples += [Sample(error=answer["error"])] * len(pair.inputs)
        else:
            samples += [Sample.of(*_in_order(first, second, swapped)) for first, second in answer["calls"]]
    return samples


def _in_order(first: _T, second: _T, swapped: bool) -> tuple[_T, _T]:
    return (second, first) if swapped else (first, second)


def interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """The median, and the ends of an interval that holds the true median with a confidence.

    By order statistics: nothing is assumed of how times are distributed. Too few ratios give their whole range.

    Args:
        ratios: At least one.
        confidence: The least probability.

    Returns:
        The lower end, the median, the upper end.
    """
    ordered, count = sorted(ratios), len(ratios)
    cut = _cut(count, confidence)
    return ordered[cut], statistics.median(ordered), ordered[count - 1 - cut]


def _cut(count: int, confidence: float) -> int:
    """How many of ordered samples may be cut off each end so that the median lies between the others, most probably.

    The median is outside if more than so many of the samples fell on one side of it: a sum of binomials, as integers,
    since thousands of samples are more than floats can count.
    """
    outside = Fraction(1 - confidence) / 2 * (1 << count)
    cut, ways, tail = 0, 1, 1
    while cut + 1 <= (count - 1) // 2:
        ways = ways * (count - cut) // (cut + 1)
        tail += ways
        if tail > outside:
            break
        cut += 1
    return cut

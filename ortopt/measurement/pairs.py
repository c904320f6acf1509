"""Times one model against another, in processes that hold both: until it is clear which is faster, or time is over."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.measurement.asking import MeasurementBudget, ask
from ortopt.measurement.intervals import interval

_CHILD: Final = "ortopt.measurement.pair_child"
_LEAST_PAIRS: Final = 12
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
    """

    first: Path
    second: Path
    inputs: tuple[Path, ...]
    as_loaded: bool = True


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
        return len(self.ratios) >= _LEAST_PAIRS and (away or speed.high - speed.low < _CLEAR)


def compare(
    first: Path,
    second: Path,
    inputs: Sequence[Path],
    effort: MeasurementBudget = BRIEF,
    *,
    deadline: float = math.inf,
    token: CancellationToken = NEVER,
) -> tuple[Speed, ...] | None:
    """Time a model against another one, in processes that hold both, until it is clear which is faster.

    Args:
        first: The other one.
        second: The model.
        inputs: Folders of stored inputs.
        effort: How much is measured, at most.
        deadline: When no further process is started, on the clock of `time.monotonic`.
        token: Cancellation token.

    Returns:
        The speed on each of the inputs; None where one of the models does not run, or took too long.
    """
    every = [Series() for _ in inputs]
    for number in range(effort.rounds):
        if number and time.monotonic() > deadline:
            break
        swapped = number % 2 == 1  # what is opened first may have the better memory
        for series, taken in zip(
            every, sample([Pair(first, second, tuple(inputs))], effort, swapped=swapped, token=token), strict=True
        ):
            if taken.error:
                return None
            series.add(taken)
        if number and all(series.is_clear for series in every):
            break
    return tuple(speed for series in every if (speed := series.speed) is not None)


def sample(
    pairs: Sequence[Pair], effort: MeasurementBudget, *, swapped: bool = False, token: CancellationToken = NEVER
) -> list[Sample]:
    """Time several pairs of models, one after the other in one process.

    Args:
        pairs: The pairs.
        effort: How much is measured of each.
        swapped: Whether the second model of a pair is opened first.
        token: Cancellation token.

    Returns:
        What was measured of each on each of its inputs; where the process died, errors.
    """
    each = [
        {
            "models": [str(path) for path in ((pair.second, pair.first) if swapped else (pair.first, pair.second))],
            "inputs": [str(folder) for folder in pair.inputs],
            "as_loaded": pair.as_loaded,
        }
        for pair in pairs
    ]
    patience = effort.patience + 2 * effort.seconds * sum(len(pair.inputs) for pair in pairs)
    answer = ask(_CHILD, {"each": each}, replace(effort, patience=patience), token)
    rows: list[dict[str, Any]] = answer.get("each", [answer] * len(pairs))
    return [one for pair, row in zip(pairs, rows, strict=True) for one in _samples(pair, row, swapped)]


def _samples(pair: Pair, row: dict[str, Any], swapped: bool) -> Iterator[Sample]:
    """The samples in the answer for a pair."""
    if "error" in row:
        yield from [Sample(error=row["error"])] * len(pair.inputs)
        return
    for own in row["inputs"]:
        ratios = tuple(1 / ratio if swapped else ratio for ratio in own["ratios"] if ratio > 0)
        yield Sample(ratios, own["seconds"] if ratios else 0.0, "" if ratios else "no call took any time")


__all__ = ["BRIEF", "Pair", "Sample", "Series", "Speed", "compare", "sample"]

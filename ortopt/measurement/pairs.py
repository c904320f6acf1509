"""Times one model against another, in processes that hold both: until it is clear which is faster, or time is over."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ortopt.analysis.providers import CPU
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.measurement.intervals import interval
from ortopt.system import child_processes

_CHILD: Final = "ortopt.measurement.pair_child"
_PATIENCE: Final = 120.0
_LEAST_PAIRS: Final = 12

CLEAR: Final = 0.02
"""By how much an interval must be away from 1, or how narrow it must be, to be clear."""


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
class Contest:
    """How two models are timed against each other.

    Attributes:
        providers: Full names, in order.
        threads: Threads within an op; 0 leaves ONNX Runtime's default.
        seconds: Seconds of timed calls in each process, on each of the inputs.
        rounds: Processes, at most.
        pairs: Timed calls of each model in each process, on each of the inputs, at most.
        clear: By how much the interval must be away from 1 to end it early.
    """

    providers: tuple[str, ...] = (CPU,)
    threads: int = 1
    seconds: float = 0.5
    rounds: int = 5
    pairs: int = 40
    clear: float = CLEAR


def compare(
    first: Path,
    second: Path,
    inputs: Sequence[Path],
    contest: Contest,
    *,
    deadline: float = math.inf,
    token: CancellationToken = NEVER,
) -> tuple[Speed, ...] | None:
    """Time a model against another one.

    Args:
        first: The other one.
        second: The model.
        inputs: Folders of stored inputs (`ortopt.verification.input_sets`).
        contest: How they are timed.
        deadline: When no further process is started, on the clock of `time.monotonic`.
        token: Cancellation token.

    Returns:
        The speed on each of the inputs; None where one of the models does not run, or took too long.
    """
    ratios: list[list[float]] = [[] for _ in inputs]
    seconds: list[list[float]] = [[] for _ in inputs]
    speeds: tuple[Speed, ...] | None = None
    for number in range(contest.rounds):
        if number and time.monotonic() > deadline:
            break
        swapped = number % 2 == 1  # what is opened first may have the better memory
        answer = _ask((second, first) if swapped else (first, second), inputs, contest, token)
        if answer is None:
            return None
        for own, times, row in zip(ratios, seconds, answer, strict=True):
            own.extend(1 / ratio if swapped else ratio for ratio in row["ratios"] if ratio > 0)
            times.append(row["seconds"])
        speeds = tuple(
            Speed(*interval(own), statistics.median(times)) for own, times in zip(ratios, seconds, strict=True)
        )
        if number and all(is_clear(speed, len(own), contest.clear) for speed, own in zip(speeds, ratios, strict=True)):
            break
    return speeds


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models that are timed against each other on the same inputs.

    Attributes:
        first: The other one.
        second: The model.
        inputs: A folder of stored inputs.
        as_loaded: Whether ONNX Runtime optimizes both when it loads them.
    """

    first: Path
    second: Path
    inputs: Path
    as_loaded: bool = True


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process has measured of a pair.

    Attributes:
        ratios: The first one's time over the second one's, call by call.
        seconds: The median of the first one's time.
        error: Why there are none; empty if there are.
    """

    ratios: tuple[float, ...] = ()
    seconds: float = 0.0
    error: str = ""


def sample(
    pairs: Sequence[Pair], contest: Contest, *, swapped: bool = False, token: CancellationToken = NEVER
) -> list[Sample]:
    """Time several pairs of models, one after the other in one process.

    Args:
        pairs: The pairs.
        contest: How they are timed; each pair in one round.
        swapped: Whether the second model of a pair is opened first.
        token: Cancellation token.

    Returns:
        What was measured of each; where the process died, of the pairs that it would have answered an error.
    """
    each = [
        {
            "models": [str(pair.second), str(pair.first)] if swapped else [str(pair.first), str(pair.second)],
            "inputs": [str(pair.inputs)],
            "as_loaded": pair.as_loaded,
        }
        for pair in pairs
    ]
    answered, status = child_processes.run(
        _CHILD,
        request=json.dumps({**_settings(contest), "each": each}).encode(),
        seconds=_PATIENCE + 2 * contest.seconds * len(pairs),
        token=token,
    )
    try:
        rows: list[dict[str, Any]] = json.loads(answered)["each"]
    except (ValueError, KeyError):
        return [Sample(error=f"its process died ({status})")] * len(pairs)
    return [_sample(row, swapped) for row in rows]


def _sample(row: dict[str, Any], swapped: bool) -> Sample:
    if "error" in row:
        return Sample(error=row["error"])
    (own,) = row["inputs"]
    ratios = tuple(1 / ratio if swapped else ratio for ratio in own["ratios"] if ratio > 0)
    return Sample(ratios, own["seconds"] if ratios else 0.0, "" if ratios else "no call took any time")


def _settings(contest: Contest) -> dict[str, Any]:
    return {
        "providers": list(contest.providers),
        "threads": contest.threads,
        "seconds": contest.seconds,
        "pairs": contest.pairs,
    }


def is_clear(speed: Speed, pairs: int, margin: float = CLEAR) -> bool:
    """Whether an interval is on one side of 1, or narrow around it.

    Args:
        speed: The interval.
        pairs: How many calls of each it was made of.
        margin: How far away from 1, or how narrow, it must be.
    """
    away = speed.low > 1 + margin or speed.high < 1 - margin
    return pairs >= _LEAST_PAIRS and (away or speed.high - speed.low < margin)


def _ask(
    models: tuple[Path, Path], inputs: Sequence[Path], contest: Contest, token: CancellationToken
) -> list[dict[str, Any]] | None:
    order = {
        "models": [str(path) for path in models],
        "inputs": [str(path) for path in inputs],
        **_settings(contest),
    }
    answered, _ = child_processes.run(_CHILD, request=json.dumps(order).encode(), seconds=_PATIENCE, token=token)
    try:
        answer = json.loads(answered)
    except ValueError:
        return None
    rows: list[dict[str, Any]] | None = answer.get("inputs")
    return rows


__all__ = ["CLEAR", "Contest", "Pair", "Sample", "Speed", "compare", "is_clear", "sample"]

"""Measures versions of a model in turns, each in child processes of its own.

In each round every version has a fresh process, which opens a session and runs it on the same inputs; the order turns
from round to round, so that changes of the machine's speed affect all versions alike.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ortopt.measurement.asking import MeasurementBudget, ask

_PLAIN: Final = "ortopt.measurement.child"
_KEYS: Final = ("call", "open", "first", "anonymous", "peak")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a model.

    Attributes:
        name: Its name, for people.
        path: Its file.
        child: The module of the process that measures it, as `ortopt.measurement.child` does.
        settings: What else that module is asked for.
    """

    name: str
    path: Path
    child: str = _PLAIN
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it; seconds or bytes."""

    low: float
    median: float
    high: float


@dataclass(slots=True)
class Figures:
    """The measurements of a version.

    Attributes:
        version: The version.
        error: Why it does not run; empty if it does.
        call: Seconds of a call: over the calls of all rounds.
        open: Seconds in which a session is opened.
        first: Seconds of the first call, which compiles what is compiled late.
        anonymous: Bytes of anonymous memory that the session holds after its first run; None where the system does not
            tell.
        peak: Bytes of all memory at the worst moment until then, over what the process had.
        ratio: Seconds of a call over the first version's in the same round.
        ratios: The same, of each round.
    """

    version: Version
    error: str = ""
    call: Spread | None = None
    open: Spread | None = None
    first: Spread | None = None
    anonymous: Spread | None = None
    peak: Spread | None = None
    ratio: Spread | None = None
    ratios: tuple[float, ...] = ()
    _rounds: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The figures as data that json can write: of each, the lower quartile, the median and the upper quartile."""
        row: dict[str, Any] = {}
        for key in (*_KEYS, "ratio"):
            spread = getattr(self, key)
            row[key] = None if spread is None else [spread.low, spread.median, spread.high]
        return row

    def add(self, answer: dict[str, Any]) -> None:
        """Take the answer of one process."""
        self.error = answer.get("error", "")
        self._rounds.append(answer)

    def summarize(self, first: Figures) -> None:
        """Compute the spreads of all rounds; the ratio is taken to another version's figures."""
        self.call = _spread([seconds for row in self._rounds for seconds in row["calls"]])
        for key in _KEYS[1:]:
            values = [row[key] for row in self._rounds if row[key] is not None]
            setattr(self, key, _spread(values) if values else None)
        if not first.error:
            pairs = zip(self._rounds, first._rounds, strict=True)
            ratios = [statistics.median(own["calls"]) / statistics.median(other["calls"]) for own, other in pairs]
            self.ratios = tuple(ratios)
            self.ratio = _spread(ratios)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a version does not run.

    Attributes:
        reason: One line.
        opens: Whether a session can be made of it, so that other inputs may help.
        kind: The name of the error's class.
    """

    reason: str
    opens: bool = False
    kind: str = ""


def attempt(version: Version, inputs: Path, effort: MeasurementBudget) -> Failure | None:
    """Run a version once; why it fails, or None.

    Args:
        version: The version.
        inputs: An .npz file.
        effort: Where, and how long it may take.
    """
    answer = measure_once(version, inputs, dataclasses.replace(effort, repeat=1, seconds=0.0))
    if "error" not in answer:
        return None
    return Failure(answer["error"], answer.get("opens", False), answer.get("kind", ""))


def measure_in_turns(versions: Sequence[Version], inputs: Path, effort: MeasurementBudget) -> list[Figures]:
    """Measure versions of a model in turns.

    Args:
        versions: The first is what the others' calls are compared with.
        inputs: An .npz file of plain arrays by input name.
        effort: How much.

    Returns:
        Figures for each version; one that has failed has no further turn.
    """
    every = [Figures(version) for version in versions]
    for number in range(effort.rounds):
        turn = number % len(every)
        for figures in (*every[turn:], *every[:turn]):
            if not figures.error:
                figures.add(measure_once(figures.version, inputs, effort))
    for figures in every:
        if not figures.error:
            figures.summarize(every[0])
    return every


def measure_once(version: Version, inputs: Path, effort: MeasurementBudget) -> dict[str, Any]:
    """The answer of one process that measures a version; its ``error`` where it does not run.

    Args:
        version: The version.
        inputs: An .npz file.
        effort: How much; ``rounds`` does not matter.
    """
    return ask(version.child, {**version.settings, "model": str(version.path), "inputs": str(inputs)}, effort)


def _spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


__all__ = [
    "Failure",
    "Figures",
    "MeasurementBudget",
    "Spread",
    "Version",
    "attempt",
    "measure_in_turns",
    "measure_once",
]

"""Measures versions of a model in turns, each in child processes of its own: as it is, optimized, and grouped.

In each round every version has a fresh process, which opens a session and runs it on the same inputs; the order turns
from round to round, so that changes of the machine's speed affect all versions alike.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError
from ortopt.measurement.asking import MeasurementBudget, ask

GROUPED: Final = 4
"""The level whose result runs under `ortopt.InferenceSession`; those below run under ONNX Runtime."""

_KEYS: Final = ("call", "open", "first", "anonymous", "peak")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a model.

    Attributes:
        level: The level that made it; 0 is the original.
        path: Its file.
    """

    level: int
    path: Path

    @property
    def name(self) -> str:
        """Its name, for people."""
        return f"-O{self.level}" if self.level else "original"


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
        version = self.version
        row: dict[str, Any] = {"name": version.name, "level": version.level, "error": self.error or None}
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


def attempt(
    version: Version, inputs: Path, budget: MeasurementBudget, token: CancellationToken = NEVER
) -> Failure | None:
    """Run a version once; why it fails, or None.

    Args:
        version: The version.
        inputs: A folder of stored inputs (`ortopt.verification.input_sets`).
        budget: Where, and how long it may take.
        token: Cancellation token.
    """
    answer = measure_once(version, inputs, dataclasses.replace(budget, repeat=1, seconds=0.0), token=token)
    if "error" not in answer:
        return None
    return Failure(answer["error"], answer.get("opens", False), answer.get("kind", ""))


def measure_in_turns(versions: Sequence[Version], inputs: Path, budget: MeasurementBudget) -> list[Figures]:
    """Measure versions of a model in turns.

    Args:
        versions: The first is what the others' calls are compared with.
        inputs: A folder of stored inputs.
        budget: How much.

    Returns:
        Figures for each version; one that has failed has no further turn.
    """
    every = [Figures(version) for version in versions]
    for number in range(budget.rounds):
        turn = number % len(every)
        for figures in (*every[turn:], *every[:turn]):
            if not figures.error:
                figures.add(measure_once(figures.version, inputs, budget))
    for figures in every:
        if not figures.error:
            figures.summarize(every[0])
    return every


def measure_once(
    version: Version,
    inputs: Path,
    budget: MeasurementBudget,
    trace: Path | None = None,
    token: CancellationToken = NEVER,
) -> dict[str, Any]:
    """The answer of one process that measures a version; its ``error`` where it does not run.

    Args:
        version: The version.
        inputs: A folder of stored inputs.
        budget: How much; ``rounds`` does not matter.
        trace: A file for a timeline.
        token: Cancellation token.
    """
    order = {
        "models": [str(version.path)],
        "inputs": [str(inputs)],
        "grouped": version.level == GROUPED,
        "trace": None if trace is None else str(trace),
    }
    (answer,) = ask("time", [order], budget, token)
    if "error" in answer:
        return answer
    return {**answer, "open": answer["open"][0], "first": answer["first"][0], "calls": answer["calls"][0][0]}


def timeline(every: Sequence[Figures], inputs: Path, budget: MeasurementBudget, folder: Path) -> dict[str, Any]:
    """One timeline of all versions, in Chrome's format: one more process of each, which is not measured, records it.

    Args:
        every: Each is a process of the timeline, and begins at 0, so that they can be compared.
        inputs: A folder of stored inputs.
        budget: How much.
        folder: Where timelines are written.
    """
    events: list[dict[str, Any]] = []
    for number, figures in enumerate(every):
        path = folder / f"trace.{number}.json"
        if figures.error or "error" in measure_once(figures.version, inputs, budget, path):
            continue
        for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
            if event["name"] == "process_name":
                event["args"]["name"] = figures.version.name
            events.append({**event, "pid": number})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def require_original(every: Sequence[Figures]) -> None:
    """Refuse figures without anything to compare with.

    Raises:
        InvalidModelError: The first version does not run.
    """
    if every[0].error:
        raise InvalidModelError(f"{every[0].version.name} does not run: {every[0].error}")


def _spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))

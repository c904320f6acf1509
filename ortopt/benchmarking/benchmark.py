"""What a model costs as it is, optimized, and grouped: each version in processes of its own, measured in turn.

In each round every version has a fresh process (`ortopt.benchmarking.child`), which opens a session and runs it on the
same inputs; the order turns from round to round, so that the machine's moods meet all versions alike.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ortopt.analysis.providers import CPU
from ortopt.errors import InvalidModelError
from ortopt.system import child_processes

GROUPED: Final = 4
"""The level whose result runs under `ortopt.InferenceSession`; those below run under ONNX Runtime."""

_MODULE: Final = "ortopt.benchmarking.child"
_KEYS: Final = ("call", "open", "first", "anonymous", "peak")


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a model.

    Attributes:
        level: 0 is the original, others what ``-O`` makes.
        path: Its file.
    """

    level: int
    path: Path

    @property
    def name(self) -> str:
        """What people call it."""
        return "original" if self.level == 0 else f"-O{self.level}"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: Processes of each version.
        repeat: Timed calls in each, at most.
        seconds: Seconds of timed calls in each, about, at most.
        threads: Intra-op threads; 0 leaves ONNX Runtime's default.
        providers: Full names, in order.
        patience: Seconds after which a process is ended.
    """

    rounds: int = 5
    repeat: int = 50
    seconds: float = 2.0
    threads: int = 0
    providers: tuple[str, ...] = (CPU,)
    patience: float = 600.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the quartiles around it; seconds or bytes."""

    low: float
    median: float
    high: float


@dataclass(slots=True)
class Figures:
    """What was measured of a version.

    Attributes:
        version: Which.
        error: Why it does not run; empty if it does.
        call: Seconds of a call: over the calls of all rounds.
        open: Seconds that the session takes to be made.
        first: Seconds of the first call, which compiles what is compiled late.
        anonymous: Bytes of anonymous memory that the session holds after its first run; None where nothing tells.
        peak: Bytes of all memory at the worst moment until then, over what the process had.
        ratio: Seconds of a call over the first version's in the same round.
    """

    version: Version
    error: str = ""
    call: Spread | None = None
    open: Spread | None = None
    first: Spread | None = None
    anonymous: Spread | None = None
    peak: Spread | None = None
    ratio: Spread | None = None
    _rounds: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """As data that json can write."""
        row: dict[str, Any] = {"name": self.version.name, "level": self.version.level, "error": self.error or None}
        for key in (*_KEYS, "ratio"):
            spread = getattr(self, key)
            row[key] = None if spread is None else [spread.low, spread.median, spread.high]
        return row


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


def attempt(version: Version, inputs: Path, effort: Effort) -> Failure | None:
    """Run a version once.

    Args:
        version: Which.
        inputs: An .npz file.
        effort: Where, and how long it may take.
    """
    answer = _measured(version, inputs, dataclasses.replace(effort, repeat=1, seconds=0.0))
    if "error" not in answer:
        return None
    return Failure(answer["error"], answer.get("opens", False), answer.get("kind", ""))


def compare(
    versions: Sequence[Version], inputs: Path, effort: Effort, traces: Path | None = None
) -> tuple[list[Figures], dict[str, Any] | None]:
    """Measure versions of a model in turn.

    Args:
        versions: The first is what the others' calls are compared with.
        inputs: An .npz file of plain arrays by input name.
        effort: How much.
        traces: A folder for timelines; one more process of each version, which is not measured, records one.

    Returns:
        Figures for each version; and, with ``traces``, one timeline of all, in Chrome's format.
    """
    found = [Figures(version) for version in versions]
    for number in range(effort.rounds):
        turn = number % len(found)
        for one in (*found[turn:], *found[:turn]):
            if one.error:
                continue
            answer = _measured(one.version, inputs, effort)
            one.error = answer.get("error", "")
            one._rounds.append(answer)
    for one in found:
        if not one.error:
            _summarize(one, found[0])
    return found, None if traces is None else _traced(found, inputs, effort, traces)


def _summarize(one: Figures, first: Figures) -> None:
    one.call = _spread([seconds for row in one._rounds for seconds in row["calls"]])
    for key in _KEYS[1:]:
        values = [row[key] for row in one._rounds if row[key] is not None]
        setattr(one, key, _spread(values) if values else None)
    if not first.error:
        pairs = zip(one._rounds, first._rounds, strict=True)
        one.ratio = _spread([statistics.median(a["calls"]) / statistics.median(b["calls"]) for a, b in pairs])


def _spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def _traced(found: Sequence[Figures], inputs: Path, effort: Effort, folder: Path) -> dict[str, Any]:
    """One timeline of all versions, each a process of it, each beginning at 0 so that they can be compared."""
    events: list[dict[str, Any]] = []
    for number, one in enumerate(found):
        path = folder / f"trace.{number}.json"
        if one.error or "error" in _measured(one.version, inputs, effort, path):
            continue
        for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
            if event["name"] == "process_name":
                event["args"]["name"] = one.version.name
            events.append({**event, "pid": number})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _measured(version: Version, inputs: Path, effort: Effort, trace: Path | None = None) -> dict[str, Any]:
    order: Mapping[str, Any] = {
        "model": str(version.path),
        "inputs": str(inputs),
        "providers": list(effort.providers),
        "grouped": version.level == GROUPED,
        "threads": effort.threads,
        "repeat": effort.repeat,
        "seconds": effort.seconds,
        "trace": None if trace is None else str(trace),
    }
    answered, status = child_processes.run(_MODULE, request=json.dumps(order).encode(), seconds=effort.patience)
    if status is None:
        return {"error": f"it took longer than {effort.patience:.0f} s"}
    try:
        answer: dict[str, Any] = json.loads(answered)
    except ValueError:
        return {"error": f"its process died ({status})"}
    return answer


def require_original(found: Sequence[Figures]) -> None:
    """Refuse figures without anything to compare with.

    Raises:
        InvalidModelError: The first version does not run.
    """
    if found[0].error:
        raise InvalidModelError(f"{found[0].version.name} does not run: {found[0].error}")

"""What is measured of a model, as data: kept as JSON, so that a run can go on where one has ended."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.tables import quartiles

ORIGINAL: Final = "original"
FLOOR: Final = "floor"
OTHER_FLOOR: Final = "floor of ours"
REACHABLE: Final = "reachable"
OURS: Final = "ortopt"

WRONG: Final = 0.05
"""An output that is away from the original's by more than this share of its largest number is another one."""


class Quartiles(NamedTuple):
    """First quartile, median and third quartile."""

    low: float
    median: float
    high: float


UNKNOWN: Final = Quartiles(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast a version is at one size, with so many threads.

    Attributes:
        tool: What made the version.
        sizes: The sizes of the symbolic dimensions, in words.
        threads: Threads within an op.
        outcome: ``ok``, or why there is no time.
        error: How far its outputs are from the original's.
        seconds: The median of its CPU time of the calling thread.
        cpu: How many times as fast as the original, turn by turn, by that time.
        wall: The same by the wall's clock.
    """

    tool: str
    sizes: str
    threads: int
    outcome: str
    error: float = 0.0
    seconds: float = math.nan
    cpu: Quartiles = UNKNOWN
    wall: Quartiles = UNKNOWN

    @property
    def speed(self) -> float:
        """The median that counts: of CPU time with one thread, else of the wall's."""
        return (self.cpu if self.threads == 1 else self.wall).median

    @property
    def counts(self) -> bool:
        """Whether it ran and gave the original's outputs."""
        return self.outcome == "ok" and self.error <= WRONG


@dataclass(slots=True)
class Result:
    """Everything that is known of a model.

    Attributes:
        model: Its name.
        key: What it depends on: as long as this stays, nothing has to be measured again.
        digest: The SHA-256 of its file.
        tools: For each tool ``ok``, or why it made nothing.
        seconds: For each tool the seconds that it took.
        loaded: For the original and ours, the nodes that ONNX Runtime has once it is loaded: all, fused, reorders.
        timings: Of each version, at each size, with each number of threads.
    """

    model: str
    key: str
    digest: str = ""
    tools: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    loaded: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)

    def speed(self, tool: str, threads: int) -> float | None:
        """The geometric mean of a tool's speeds over all sizes; None where one is missing."""
        rows = [row for row in self.timings if row.tool == tool and row.threads == threads]
        if not rows or not all(row.counts for row in rows):
            return None
        return math.exp(statistics.fmean(math.log(max(row.speed, 1e-9)) for row in rows))

    def as_dict(self) -> dict[str, Any]:
        """The result as data that json can write: what was not measured is null."""
        data: dict[str, Any] = _known(asdict(self))
        return data

    def write(self, path: Path) -> None:
        """Write it as JSON, the whole file or nothing."""
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        draft.replace(path)


def _known(data: Any) -> Any:
    """Data with None instead of NaN and infinities."""
    if isinstance(data, dict):
        return {key: _known(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_known(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def read(path: Path) -> Result:
    """A result that was written."""
    return result_of(json.loads(path.read_text(encoding="utf-8")))


def result_of(data: Mapping[str, Any]) -> Result:
    """A result of its data (`Result.as_dict`)."""
    loaded = {tool: tuple(nodes) for tool, nodes in data["loaded"].items()}
    return Result(**{**data, "timings": [_timing(row) for row in data["timings"]], "loaded": loaded})


def _timing(row: dict[str, Any]) -> Timing:
    absent = {"seconds": math.nan, "error": math.inf}
    numbers = {key: value if row[key] is None else row[key] for key, value in absent.items()}
    ratios = {key: Quartiles(*(math.nan if one is None else one for one in row[key])) for key in ("cpu", "wall")}
    return Timing(**{**row, **numbers, **ratios})


def timings(answers: Sequence[Mapping[str, Any]], sizes: str, threads: int) -> list[Timing]:
    """Timings of the answers of several processes (`benchmarks.speed.turns`), the original's ratios being 1.

    Args:
        answers: What each process answered, by the versions' names.
        sizes: The sizes, in words.
        threads: Threads within an op.
    """
    rows = []
    for name in answers[0]:
        mine = [answer[name] for answer in answers]
        failed = next((one["outcome"] for one in mine if one["outcome"] != "ok"), None)
        original = next((a[ORIGINAL]["outcome"] for a in answers if a[ORIGINAL]["outcome"] != "ok"), None)
        if failed or original:
            rows.append(Timing(name, sizes, threads, failed or f"the original {original}"))
            continue
        ratios = {
            clock: Quartiles(*quartiles([r for a in answers for r in _ratios(a[ORIGINAL][clock], a[name][clock])]))
            for clock in ("cpu", "wall")
        }
        seconds = statistics.median(taken for one in mine for taken in one["cpu"])
        error = max(one["error"] for one in mine)
        rows.append(Timing(name, sizes, threads, "ok", error, seconds, ratios["cpu"], ratios["wall"]))
    return rows


def one_floor(rows: Sequence[Timing]) -> list[Timing]:
    """The same with a single floor: the fastest."""
    floors = [row for row in rows if row.tool in (FLOOR, OTHER_FLOOR)]
    known = [row for row in floors if row.outcome == "ok"] or floors
    fastest = [replace(max(known, key=lambda row: row.speed), tool=FLOOR)] if known else []
    return [*(row for row in rows if row not in floors), *fastest]


def _ratios(original: Sequence[float], version: Sequence[float]) -> list[float]:
    return [before / max(after, 1e-9) for before, after in zip(original, version, strict=True)]

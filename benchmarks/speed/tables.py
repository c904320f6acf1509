"""Results as Markdown: pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from benchmarks import tools
from benchmarks.speed.results import FLOOR, ORIGINAL, OURS, REACHABLE, WRONG, Result, Timing
from benchmarks.tables import markdown, number

ENDS = {FLOOR: "way to the floor", REACHABLE: "way to what is reachable"}
_MIN_GAP = 1.03  # a floor that is nearer is no way to go


def mean(results: Iterable[Result], tool: str, threads: int) -> float | None:
    """The geometric mean of a tool's speeds over models; those where it has none are left out."""
    speeds = [speed for result in results if (speed := result.speed(tool, threads)) is not None]
    return math.exp(statistics.fmean(map(math.log, speeds))) if speeds else None


def way(result: Result, tool: str, threads: int) -> float | None:
    """How much of the way from the original to the floor a tool goes, on a log scale; None where there is no way."""
    speed, floor = result.speed(tool, threads), result.speed(FLOOR, threads)
    if speed is None or floor is None or floor < _MIN_GAP:
        return None
    return math.log(speed) / math.log(floor)


def whole_way(results: Iterable[Result], tool: str, threads: int, end: str = FLOOR) -> float | None:
    """The same over all models that have a floor: the sums of logarithms against each other.

    Args:
        results: Results of models.
        tool: The tool.
        threads: Threads within an op.
        end: Where the way ends: at the floor, or at what is reachable.
    """
    both = [(result.speed(tool, threads), result.speed(end, threads)) for result in results]
    known = [(math.log(speed), math.log(floor)) for speed, floor in both if speed is not None and floor is not None]
    total = sum(floor for _, floor in known)
    return sum(speed for speed, _ in known) / total if total > 0 else None


def columns(results: Sequence[Result]) -> list[str]:
    """The tools that any result has, ours first, the floor and what is reachable last."""
    named = dict.fromkeys(row.tool for result in results for row in result.timings)
    first = [tool for tool in (OURS, tools.TUNED) if tool in named]
    others = [tool for tool in named if tool not in (ORIGINAL, *ENDS, *first)]
    return [*first, *others, *(end for end in ENDS if end in named)]


def speeds(results: Sequence[Result], threads: int) -> str:
    """A line for each model and size: how many times as fast as the original each version runs, with quartiles."""
    names = columns(results)
    ends = [end for end in ENDS if end in names] or [FLOOR]
    lines = []
    for result in results:
        rows = {(row.sizes, row.tool): row for row in result.timings if row.threads == threads}
        for sizes in dict.fromkeys(sizes for sizes, _ in rows):
            original = rows.get((sizes, ORIGINAL))
            seconds = number(original.seconds * 1e3) if original is not None and original.outcome == "ok" else "-"
            shares = [_share(rows.get((sizes, OURS)), rows.get((sizes, end))) for end in ends]
            lines.append([result.model, sizes, seconds, *(_cell(rows.get((sizes, name))) for name in names), *shares])
    ways = [percent(whole_way(results, OURS, threads, end)) for end in ends]
    lines.append(["**geometric mean**", "", "", *(number(mean(results, name, threads)) for name in names), *ways])
    lines.append(
        ["**least**", "", "", *(number(_least(results, name, threads)) for name in names), *("" for _ in ends)]
    )
    return markdown(["model", "sizes", "original, ms", *names, *(ENDS[end] for end in ends)], lines)


def _least(results: Iterable[Result], tool: str, threads: int) -> float | None:
    rows = (row for result in results for row in result.timings if row.tool == tool and row.threads == threads)
    return min((row.speed for row in rows if row.counts), default=None)


def _cell(row: Timing | None) -> str:
    if row is None or row.outcome != "ok":
        return "-"
    if row.error > WRONG:
        return "wrong"
    ratios = row.cpu if row.threads == 1 else row.wall
    return f"{ratios.median:.2f} ({ratios.low:.2f} to {ratios.high:.2f})"


def _share(ours: Timing | None, floor: Timing | None) -> str:
    if ours is None or floor is None or not ours.counts or not floor.counts or floor.speed < _MIN_GAP:
        return "-"
    return percent(math.log(ours.speed) / math.log(floor.speed))


def percent(share: float | None) -> str:
    """A share in percent."""
    return "-" if share is None else f"{share * 100:.0f} %"


def loaded(results: Sequence[Result]) -> str:
    """Nodes that ONNX Runtime has once models are loaded; of these fused ones, and reorders of the blocked layout."""
    tools_loaded = [tool for tool in (ORIGINAL, OURS, tools.TUNED) if any(tool in one.loaded for one in results)]
    header = ["model", *(f"{tool}: {what}" for tool in tools_loaded for what in ("nodes", "fused", "reorders"))]
    lines = [
        [one.model, *(str(count) for tool in tools_loaded for count in one.loaded.get(tool, ("-", "-", "-")))]
        for one in results
    ]
    return markdown(header, lines)


def behind(results: Sequence[Result], threads: int) -> str:
    """Where ours is slower than the original or than what another tool makes of the model, by more than noise."""
    lines = []
    for result in results:
        rows = [row for row in result.timings if row.threads == threads and row.counts]
        for ours in (row for row in rows if row.tool == OURS):
            others = [row for row in rows if row.sizes == ours.sizes and row.tool not in (OURS, tools.TUNED, *ENDS)]
            best = max(others, key=lambda row: row.speed, default=None)
            if best is not None and ours.speed < best.speed * 0.98:
                text = f"{ours.speed:.2f}; {best.tool} {best.speed:.2f}"
                lines.append(f"- {result.model} ({ours.sizes}): {text}\n")
    if not lines:
        return "Nowhere slower than the original or another tool's result by more than 2 %.\n"
    return "Slower than the original or another tool's result by more than 2 %:\n\n" + "".join(lines)


def failures(results: Sequence[Result]) -> str:
    """What could not be made, does not run, or computes something else."""
    lines = []
    for result in results:
        lines += [f"- {result.model}, {tool}: {what}\n" for tool, what in result.tools.items() if what != "ok"]
        for row in {row.tool: row for row in result.timings}.values():
            if row.outcome != "ok":
                lines.append(f"- {result.model}, {row.tool}: {row.outcome}\n")
            elif row.error > WRONG and row.tool not in (ORIGINAL, *ENDS):
                lines.append(
                    f"- {result.model}, {row.tool}: outputs are off by {row.error:.2g} of the largest number\n"
                )
    return "".join(lines)


def files(results: Sequence[Result]) -> str:
    """Which files were measured, by the first half of their SHA-256."""
    return markdown(["model", "SHA-256"], [[one.model, f"`{one.digest[:32]}`"] for one in results])


def page(results: Sequence[Result], threads: Sequence[int]) -> str:
    """All tables."""
    parts = []
    for count in threads:
        clock = "CPU time of the thread" if count == 1 else "wall time"
        parts += [f"### {count} thread{'s' if count > 1 else ''}, {clock}\n", speeds(results, count)]
        parts.append(behind(results, count))
    parts += ["### After load\n", loaded(results)]
    failed = failures(results)
    parts += ["### What failed\n", failed] if failed else []
    parts += ["### Files\n", files(results)]
    return "\n".join(parts)

"""Statistics and tables: pure functions, so that a test can hold them."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortopt.system import processor


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """The geometric mean; None of nothing.

    Raises:
        ValueError: A ratio is zero or negative.
    """
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)) if logs else None


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile, interpolated between the values; of one value, three times that one."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = math.ceil(place)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return at(0.25), at(0.5), at(0.75)


def speedups(original: Sequence[float], result: Sequence[float]) -> tuple[float, float, float]:
    """Quartiles of original / result, round by round: what slows the machine down for a while slows both."""
    return quartiles([before / after for before, after in zip(original, result, strict=True)])


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The b of cost = a * size ** b, by least squares on logarithms.

    Raises:
        ValueError: Fewer than two sizes, or something that has no logarithm.
    """
    if len(set(sizes)) < 2:
        raise ValueError("an exponent takes at least two sizes")
    xs = [math.log(size) for size in sizes]
    ys = [math.log(cost) for cost in costs]
    return statistics.linear_regression(xs, ys).slope


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, all others to the right."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, in plain notation; a dash where there is none."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def headline(facts: Mapping[str, Any]) -> str:
    """One line for the head of a page: `machine`, the versions of all tools, and how often each was measured."""
    where = facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']}, "
        f"Python {where['python']}, load {where['load']}. {versions}. "
        f"Medians of {facts['repeat']}, whole processes, tools in turns.\n"
    )


def machine() -> dict[str, str | int | float]:
    """What the numbers were measured on: model of the CPU, cores that we may use, memory, system, Python, load average.

    A load far above one says that others were at work, and that the numbers are to be measured again.
    """
    return {
        "cpu": _cpu(),
        "cores": processor.usable(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

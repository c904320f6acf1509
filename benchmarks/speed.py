"""How fast results run: `python -m benchmarks.speed [--models A,B] [--tools T,U] [--threads 1] [--out FOLDER]`.

Each tool's result is timed against the original, under ONNX Runtime's defaults, in processes that hold both models and
call them in turns, at representative sizes (one token and many where sizes are open). With one thread the time is the
CPU time of that thread. The table has the median of the ratios for each size, and the geometric means over all models.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import tools
from benchmarks.process import measure
from ortopt import zoo
from ortopt.measurement.pairs import Contest, Speed, compare
from ortopt.serialization.load import load
from ortopt.tuning.inputs import StoredInputs, stored_inputs

TOOLS = ("ortopt", "ort_extended", *tools.PEERS)
TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Row:
    """One tool's result of one model at one size.

    Attributes:
        model: The model's name in the zoo.
        sizes: The sizes of its symbolic dimensions, in words.
        tool: The tool.
        speed: How fast the result is, compared with the original; None where there is none, or it does not run.
    """

    model: str
    sizes: str
    tool: str
    speed: Speed | None


def measured(name: str, names: Sequence[str], contest: Contest, folder: Path) -> list[Row]:
    """All rows of a model.

    Args:
        name: A model of the zoo.
        names: The tools.
        contest: How two models are timed against each other.
        folder: An empty folder.
    """
    source = zoo.cached(name)
    brief = dataclasses.replace(contest, rounds=1, pairs=1, seconds=0.0)

    def runs(inputs: Path) -> bool:
        return compare(source, source, [inputs], brief) is not None

    inputs = list(stored_inputs(load(source), folder / "inputs", runs, sizes={}))
    rows = []
    for tool in names:
        result = folder / tool / "result.onnx"
        result.parent.mkdir()
        done = measure(tools.command(tool, source, result), TIMEOUT)
        speeds = compare(source, result, [each.folder for each in inputs], contest) if done.ok and inputs else None
        rows += [
            Row(name, _words(each), tool, None if speeds is None else speeds[number])
            for number, each in enumerate(inputs)
        ]
    return rows


def _words(inputs: StoredInputs) -> str:
    return ", ".join(f"{name} {size}" for name, size in inputs.sizes.items()) or "as they are"


def mean(rows: Iterable[Row], tool: str) -> float:
    """The geometric mean of a tool's speeds: of the sizes of a model first, then of the models."""
    models: dict[str, list[float]] = {}
    for row in rows:
        if row.tool == tool and row.speed is not None:
            models.setdefault(row.model, []).append(math.log(row.speed.median))
    return math.exp(statistics.fmean(map(statistics.fmean, models.values()))) if models else math.nan


def table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The rows as Markdown: a line for each model and size, a column for each tool."""
    cells = {(row.model, row.sizes, row.tool): row.speed for row in rows}
    lines = [f"| model | sizes | original, ms | {' | '.join(names)} |", f"| --- | --- {'| ---: ' * (len(names) + 1)}|"]
    for model, sizes in dict.fromkeys((row.model, row.sizes) for row in rows):
        speeds = [cells.get((model, sizes, tool)) for tool in names]
        seconds = next((speed.seconds for speed in speeds if speed is not None), math.nan)
        shown = " | ".join("-" if speed is None else f"{speed.median:.2f}" for speed in speeds)
        lines.append(f"| {model} | {sizes} | {seconds * 1e3:.2f} | {shown} |")
    means = " | ".join(f"{mean(rows, tool):.3f}" for tool in names)
    return "\n".join([*lines, f"| **geometric mean** | | | {means} |", ""])


def main() -> None:
    """Measure, and write `speed.md` and `speed.json` after each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=lambda text: tuple(text.split(",")), default=zoo.names())
    parser.add_argument("--tools", type=lambda text: tuple(text.split(",")), default=TOOLS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench-out"))
    asked = parser.parse_args()
    names = [tool for tool in asked.tools if not tools.missing(tool)]
    contest = Contest(threads=asked.threads, rounds=asked.rounds)
    asked.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name in asked.models:
        print(name, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows += measured(name, names, contest, Path(folder))
        (asked.out / "speed.md").write_text(table(rows, names), encoding="utf-8")
        (asked.out / "speed.json").write_text(json.dumps([dataclasses.asdict(row) for row in rows]), encoding="utf-8")
    print(table(rows, names))


if __name__ == "__main__":
    main()

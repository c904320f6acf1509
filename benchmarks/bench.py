"""ortopt beside its peers on the zoo: `python -m benchmarks.bench` (`make bench`).

Every number of seconds and memory is that of a whole process, from nothing to the written file; tools take turns, so
that a slow minute of the machine meets all of them. A tool that crashes, hangs or refuses has a row that says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import graphs, tools
from benchmarks.process import ROOT, measure
from benchmarks.tables import geometric_mean, headline, machine, markdown, number, speedups
from ortopt import zoo

MEGABYTE = 1_000_000
_LATENCY_ROUNDS = 200
_LATENCY_SECONDS = 4  # for each version of a model; slow models have fewer rounds


@dataclass
class Row:
    """What one tool did to one model.

    Attributes:
        model: The model's name in the zoo.
        tool: The tool's name; ``original`` is the model as it is.
        outcome: ``ok``, or one line that says what went wrong.
        seconds: Of each repetition.
        peaks: Peak resident bytes of each repetition.
        nodes: Nodes of the result, Constants left out, subgraphs and functions included.
        nodes_after_ort: The same once ONNX Runtime has fully optimized the result.
        fused_after_ort: How many of those are of no standard domain.
        latency: Seconds of each round under ONNX Runtime's defaults, in turns with the other versions of the model.
        latency_outcome: ``ok``, or why the result does not run.
    """

    model: str
    tool: str
    outcome: str = "ok"
    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    nodes: int | None = None
    nodes_after_ort: int | None = None
    fused_after_ort: int | None = None
    latency: list[float] = field(default_factory=list)
    latency_outcome: str = "ok"


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        models: Names in the zoo.
        tools: Names in `tools.ALL`.
        repeat: How often each tool runs on each model.
        latency: Whether the results are run as well.
        timeout: Seconds that a tool may take.
        light: The light models, whose nodes are counted only, all tools folding without a limit.
    """

    models: tuple[str, ...]
    tools: tuple[str, ...]
    repeat: int
    latency: bool
    timeout: float
    light: tuple[str, ...] = ()


def run(plan: Plan, out: Path) -> list[Row]:
    """Measure, and keep `out` current after every model: what has been measured is never lost."""
    rows: list[Row] = []
    out.mkdir(parents=True, exist_ok=True)
    for done, name in enumerate(plan.models, 1):
        print(f"[{done}/{len(plan.models)}] {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows += measure_model(name, plan, Path(folder), warm_up=done == 1)
        write(rows, plan, out)
    for name in plan.light:
        print(name, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows += count_light(name, plan, Path(folder))
        write(rows, plan, out)
    return rows


def count_light(name: str, plan: Plan, folder: Path) -> list[Row]:
    """The rows of a light model: only nodes. Its nodes make its weights, so tools differ by what they may fold."""
    source = zoo.grow(name, folder / f"{name}.onnx")
    rows = [Row(name, "original", nodes=graphs.count(source).total)]
    for tool in plan.tools:
        row = Row(name, tool)
        rows.append(row)
        _repeat(row, source, _result(folder, tool), plan.timeout, counts=False, unlimited=True)
        if row.outcome == "ok":
            row.nodes = graphs.count(_result(folder, tool)).total
    return rows


def measure_model(name: str, plan: Plan, folder: Path, *, warm_up: bool) -> list[Row]:
    """All rows of one model, the original first.

    Args:
        name: A model of the zoo.
        plan: What to measure.
        folder: An empty folder for the model and the results.
        warm_up: Whether each tool first runs once unmeasured: its files must be in the system's cache.
    """
    source = zoo.grow(name, folder / f"{name}.onnx")
    rows = {tool: Row(name, tool) for tool in plan.tools}
    for turn in range(-1 if warm_up else 0, plan.repeat):
        shift = turn % len(plan.tools)
        for tool in (*plan.tools[shift:], *plan.tools[:shift]):
            if rows[tool].outcome == "ok":
                _repeat(rows[tool], source, _result(folder, tool), plan.timeout, counts=turn >= 0)
    original = Row(name, "original")
    files = {tool: _result(folder, tool) for tool, row in rows.items() if row.outcome == "ok"}
    everyone = [(original, source), *((rows[tool], path) for tool, path in files.items())]
    for row, path in everyone:
        row.nodes = graphs.count(path).total
        _downstream(row, path, folder / "downstream.onnx", plan.timeout)
    if plan.latency:
        _latency(name, everyone, folder / "inputs.npz")
    return [original, *rows.values()]


def _result(folder: Path, tool: str) -> Path:
    return folder / tool / "result.onnx"


def _repeat(row: Row, source: Path, out: Path, timeout: float, *, counts: bool, unlimited: bool = False) -> None:
    if tools.missing(row.tool):
        row.outcome = "not installed"
        return
    out.parent.mkdir(exist_ok=True)
    out.unlink(missing_ok=True)
    done = measure(tools.command(row.tool, source, out, unlimited=unlimited), timeout)
    row.outcome = done.outcome if not done.ok or out.is_file() else "exit 0, but no file"
    if row.outcome == "ok" and counts:
        row.seconds.append(done.seconds)
        row.peaks.append(done.peak)


def _downstream(row: Row, path: Path, out: Path, timeout: float) -> None:
    """What ONNX Runtime makes of a file: nothing that was done to it may keep ONNX Runtime from doing its own."""
    out.unlink(missing_ok=True)
    if measure(tools.command("ort_all", path, out), timeout).ok and out.is_file():
        left = graphs.count(out)
        row.nodes_after_ort, row.fused_after_ort = left.total, left.fused


def _latency(name: str, everyone: Sequence[tuple[Row, Path]], inputs: Path) -> None:
    feeds: dict[str, Any] = dict(zoo.inputs(name))
    np.savez(inputs, **feeds)
    paths = [path for _, path in everyone]
    seconds = str(_LATENCY_SECONDS * len(paths))
    command = [sys.executable, "-m", "benchmarks.latency", str(_LATENCY_ROUNDS), seconds, str(inputs), *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        for row, _ in everyone:
            row.latency_outcome = f"the process that ran all versions ended with {done.returncode}"
        return
    for (row, _), times in zip(everyone, json.loads(done.stdout), strict=True):
        if isinstance(times, str):
            row.latency_outcome = times
        else:
            row.latency = times


def write(rows: Sequence[Row], plan: Plan, out: Path) -> None:
    """Write bench.json (everything) and bench.md (tables) into the folder `out`."""
    facts: dict[str, Any] = {"machine": machine(), "versions": tools.versions(), "repeat": plan.repeat}
    facts["rows"] = [asdict(row) for row in rows]
    (out / "bench.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (out / "bench.md").write_text(f"# Benchmark\n\n{headline(facts)}\n{report(rows)}", encoding="utf-8")


def report(everything: Sequence[Row]) -> str:
    """All tables, as Markdown."""
    light = [row for row in everything if _is_light(row.model)]
    rows = [row for row in everything if not _is_light(row.model)]
    parts = [
        "## Seconds\n",
        seconds_table(rows),
        "## Peak memory, MB resident\n",
        _table(rows, lambda row: number(statistics.median(row.peaks) / MEGABYTE) if row.peaks else "-"),
        "## Nodes left\n",
        _table(rows, lambda row: str(row.nodes), original=True),
        more_nodes(rows),
        "## Nodes left once ONNX Runtime has optimized the result (of these, fused)\n",
        _table(rows, lambda row: f"{row.nodes_after_ort} ({row.fused_after_ort})", original=True),
        harm(rows),
    ]
    if any(row.latency for row in rows):
        parts += [
            "## Speed of the result under ONNX Runtime's defaults, original = 1 (quartiles)\n",
            latency_table(rows),
        ]
    if light:
        parts += [
            "## Nodes left of the light models, no tool limited in what it folds\n",
            _table(light, lambda row: str(row.nodes), original=True),
            more_nodes(light),
        ]
    failed = [f"- {row.model}, {row.tool}: {row.outcome}\n" for row in everything if row.outcome != "ok"]
    failed += [f"- {row.model}, {row.tool}: {row.latency_outcome}\n" for row in rows if row.latency_outcome != "ok"]
    if failed:
        parts += ["## What failed\n", "".join(failed)]
    return "\n".join(parts)


def seconds_table(rows: Sequence[Row]) -> str:
    """Median seconds, and ortopt's time over that of the fastest peer, whose geometric mean is the last row."""
    ratios: dict[str, float] = {}
    for model, by_tool in _by_model(rows).items():
        peers = [statistics.median(by_tool[tool].seconds) for tool in tools.PEERS if _measured(by_tool.get(tool))]
        ours = by_tool.get("ortopt")
        if peers and ours is not None and _measured(ours):
            ratios[model] = statistics.median(ours.seconds) / min(peers)
    table = _table(
        rows,
        lambda row: number(statistics.median(row.seconds)) if row.seconds else "-",
        last=("ortopt / fastest peer", {model: number(ratio) for model, ratio in ratios.items()}),
    )
    if not ratios:
        return table
    worst = max(ratios, key=lambda model: ratios[model])
    mean = number(geometric_mean(ratios.values()))
    return f"{table}\nGeometric mean of ortopt / fastest peer: {mean}; worst {number(ratios[worst])} on {worst}.\n"


def latency_table(rows: Sequence[Row]) -> str:
    """How many times as fast as the original each result runs; ratios are taken round by round."""
    header = ["model", "original, ms"]
    shown = [tool for tool in _tools(rows) if any(row.latency for row in rows if row.tool == tool)]
    lines, means = [], dict[str, list[float]]()
    for model, by_tool in _by_model(rows).items():
        original = by_tool["original"]
        if not original.latency:
            continue
        line = [model, number(1000 * statistics.median(original.latency))]
        for tool in shown:
            row = by_tool.get(tool)
            if row is None or not row.latency:
                line.append("-" if row is None or row.outcome != "ok" else "does not run")
                continue
            low, middle, high = speedups(original.latency, row.latency)
            means.setdefault(tool, []).append(middle)
            line.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
        lines.append(line)
    summary = ["geometric mean", "", *(number(geometric_mean(means.get(tool, []))) for tool in shown)]
    worst = ["worst", "", *(number(min(means.get(tool, []), default=None)) for tool in shown)]
    return markdown([*header, *shown], [*lines, summary, worst])


def more_nodes(rows: Sequence[Row]) -> str:
    """Where `ortopt_onnx1` leaves more nodes than the best of the peers and ONNX Runtime's basic level."""
    lines = []
    looked_at = 0
    for model, by_tool in _by_model(rows).items():
        ours = by_tool.get("ortopt_onnx1")
        theirs = [by_tool[tool] for tool in (*tools.PEERS, "ort_basic") if tool in by_tool]
        best = min((row for row in theirs if row.nodes is not None), key=lambda row: row.nodes or 0, default=None)
        if ours is None or ours.nodes is None or best is None or best.nodes is None:
            continue
        looked_at += 1
        if ours.nodes > best.nodes:
            lines.append(f"- {model}: {ours.nodes} nodes, {best.nodes} by {best.tool}\n")
    if lines:
        return "More nodes left at -O1 --target onnx than by the best of the others:\n\n" + "".join(lines)
    return f"At -O1 --target onnx no more nodes left than by the best of the others, on all {looked_at} models.\n"


def harm(rows: Sequence[Row]) -> str:
    """Where ONNX Runtime ends with more nodes, or fewer fused ones, because of what ortopt did."""
    lines = []
    looked_at = 0
    for model, by_tool in _by_model(rows).items():
        before = by_tool["original"]
        for tool in tools.OURS:
            row = by_tool.get(tool)
            if row is None or row.outcome != "ok" or before.nodes_after_ort is None or before.fused_after_ort is None:
                continue
            looked_at += 1
            if row.nodes_after_ort is None or row.fused_after_ort is None:
                lines.append(f"- {model}, {tool}: ONNX Runtime cannot load the result\n")
            elif row.nodes_after_ort > before.nodes_after_ort:
                lines.append(f"- {model}, {tool}: {row.nodes_after_ort} nodes, {before.nodes_after_ort} without it\n")
            elif tool == "ortopt_onnx1" and row.fused_after_ort < before.fused_after_ort:
                lines.append(f"- {model}, {tool}: {row.fused_after_ort} fused, {before.fused_after_ort} without it\n")
    return (
        "Harm done downstream:\n\n" + "".join(lines) if lines else f"No harm done downstream in {looked_at} results.\n"
    )


def _is_light(model: str) -> bool:
    return model.startswith("light_")


def _measured(row: Row | None) -> bool:
    return row is not None and bool(row.seconds)


def _by_model(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    models: dict[str, dict[str, Row]] = {}
    for row in rows:
        models.setdefault(row.model, {})[row.tool] = row
    return models


def _tools(rows: Iterable[Row]) -> list[str]:
    """Every tool in the rows, in order, the original apart."""
    return list(dict.fromkeys(row.tool for row in rows if row.tool != "original"))


def _table(
    rows: Sequence[Row],
    cell: Callable[[Row], str],
    *,
    original: bool = False,
    last: tuple[str, Mapping[str, str]] | None = None,
) -> str:
    shown = [*(["original"] if original else []), *_tools(rows)]
    title, extra = last if last is not None else ("", {})
    lines = []
    for model, by_tool in _by_model(rows).items():
        cells = [_cell(by_tool.get(tool), cell) for tool in shown]
        lines.append([model, *cells, *([extra.get(model, "-")] if last is not None else [])])
    return markdown(["model", *shown, *([title] if last is not None else [])], lines)


def _cell(row: Row | None, cell: Callable[[Row], str]) -> str:
    if row is None:
        return "-"
    return cell(row) if row.outcome == "ok" else row.outcome.partition(":")[0]


def main() -> None:
    """Read the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="all", help="names by commas, `skeletons`, `light` or `all` (default all)")
    parser.add_argument("--tools", default=",".join(tools.ALL), help=f"names by commas (default {','.join(tools.ALL)})")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each tool on each model (default 5)")
    parser.add_argument("--latency", action=argparse.BooleanOptionalAction, default=True, help="run the results too")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a tool may take (default 600)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out", help="folder of bench.json and bench.md")
    options = parser.parse_args()
    wanted = tuple(options.tools.split(","))
    unknown = sorted(set(wanted) - set(tools.ALL))
    if unknown or options.repeat < 1:
        parser.error(f"no tool is named {', '.join(unknown)}" if unknown else "--repeat is at least 1")
    everything = zoo.names()
    light = tuple(filter(_is_light, everything))
    groups = {"all": everything, "light": light, "skeletons": tuple(name for name in everything if name not in light)}
    models = groups.get(options.models) or tuple(options.models.split(","))
    for name in models:
        zoo.skeleton(name)  # refuses what it does not know before an hour is spent
    whole = tuple(name for name in models if not _is_light(name))
    light = tuple(filter(_is_light, models))
    rows = run(Plan(whole, wanted, options.repeat, options.latency, options.timeout, light), options.out.resolve())
    print(report(rows))


if __name__ == "__main__":
    main()

"""Cost against size: `python -m benchmarks.scale` times ortopt and ONNX Runtime on generated graphs and two big models.

Graphs of which only one thing is many (benchmarks/shapes.py) show what grows as the square of it: with an exponent
above 1.2, in time or memory, the command fails. Models are made in a temporary folder and deleted. ONNX Runtime runs
lean: without its memory planner, which is quadratic in nodes. ``onnx_ir`` is onnx-ir's own load and save, what an
optimizer on it pays before it does anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import onnx

from benchmarks import tools
from benchmarks.generators import GENERATORS, bert_base, external
from benchmarks.process import ROOT, measure
from benchmarks.shapes import SHAPES
from benchmarks.tables import exponent, headline, machine, markdown, number

MEGABYTE = 1_000_000
SCALE_TOOLS = ("ortopt", "ort_extended_lean", "onnx_ir")
BIG_TOOLS = ("ortopt", "ort_extended_lean", "cp")
SHAPE_TOOLS = ("ortopt",)
SIZES = (1_000, 10_000, 100_000)
SHAPE_SIZES = (1_000, 4_000, 16_000)
MAX_EXPONENT = 1.2


@dataclass
class Point:
    """What one tool took for one model.

    Attributes:
        model: The generator's name, or the big model's.
        nodes: Nodes of the model; of a graph of which one thing is many, how many of everything there are.
        weights: Bytes of the model with its external data.
        tool: The tool's name.
        outcome: ``ok``, or one line that says what went wrong.
        seconds: Of each repetition, whole process.
        peaks: Peak resident bytes of each repetition.
    """

    model: str
    nodes: int
    weights: int
    tool: str
    outcome: str = "ok"
    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)


def measure_file(name: str, source: Path, used: Sequence[str], repeat: int, timeout: float) -> list[Point]:
    """Run every tool `repeat` times on a file, in turns; results are deleted at once.

    Args:
        name: What the tables call the model.
        source: The .onnx file, its weights inside or in ``SOURCE.data``.
        used: Names of tools.
        repeat: How often each runs.
        timeout: Seconds that a run may take.
    """
    nodes = len(onnx.load_model(source, load_external_data=False).graph.node)
    data = source.with_name(f"{source.name}.data")
    files = [path for path in (source, data) if path.exists()]
    weights = sum(path.stat().st_size for path in files)
    points = {tool: Point(name, nodes, weights, tool) for tool in used}
    for _ in range(repeat):
        for tool, point in points.items():
            if point.outcome != "ok":
                continue
            print(f"{name}, {nodes} nodes: {tool}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=source.parent) as folder:
                out = Path(folder, "result.onnx")
                done = measure(["cp", *files, folder] if tool == "cp" else tools.command(tool, source, out), timeout)
            point.outcome = done.outcome
            if done.ok:
                point.seconds.append(done.seconds)
                point.peaks.append(done.peak)
    return list(points.values())


def generated(
    generators: Mapping[str, Callable[[int], onnx.ModelProto]],
    sizes: Iterable[int],
    used: Sequence[str],
    repeat: int,
    timeout: float,
) -> Iterator[Point]:
    """Every generator at every size."""
    for name, generate in generators.items():
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder, f"{name}.onnx")
                source.write_bytes(generate(size).SerializeToString())
                for point in measure_file(name, source, used, repeat, timeout):
                    yield replace(point, nodes=size if generators is SHAPES else point.nodes)


def heavy(bytes_outside: int, used: Sequence[str], repeat: int, timeout: float) -> Iterator[Point]:
    """The two big models: BERT-base with its weights inside, and a stack with so many bytes of weights outside."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "bert_base.onnx")
        bert_base(source)
        yield from measure_file("BERT-base, inline", source, used, repeat, timeout)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "stack.onnx")
        external(source, bytes_outside)
        yield from measure_file("stack, external data", source, used, repeat, timeout)


def write(points: Sequence[Point], repeat: int, out: Path) -> None:
    """Write scale.json (everything) and scale.md (tables) into the folder `out`."""
    facts: dict[str, Any] = {"machine": machine(), "versions": tools.versions(), "repeat": repeat}
    saved = {**facts, "points": [asdict(point) for point in points]}
    out.mkdir(parents=True, exist_ok=True)
    (out / "scale.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    (out / "scale.md").write_text(f"# Cost against size\n\n{headline(facts)}\n{report(points)}", encoding="utf-8")


def report(points: Sequence[Point]) -> str:
    """All tables, as Markdown."""
    exponents = exponents_table(points)
    return "\n".join([points_table(points), *(["### Exponents of nodes\n", exponents] if exponents else [])])


def points_table(points: Sequence[Point]) -> str:
    """Seconds and peak memory of every point, beside ONNX Runtime's seconds for the same model."""
    runtime = {(p.model, p.nodes): p for p in points if p.tool == "ort_extended_lean" and p.seconds}
    lines = []
    for point in points:
        line = [point.model, str(point.nodes), number(point.weights / MEGABYTE), point.tool]
        if not point.seconds:
            lines.append([*line, point.outcome.partition(":")[0], "-", "-"])
            continue
        seconds = statistics.median(point.seconds)
        other = runtime.get((point.model, point.nodes))
        ratio = seconds / statistics.median(other.seconds) if other is not None else None
        lines.append([*line, number(seconds), number(ratio), number(statistics.median(point.peaks) / MEGABYTE)])
    return markdown(["model", "nodes", "MB", "tool", "seconds", "of ORT's", "peak, MB"], lines)


def exponents_table(points: Sequence[Point]) -> str:
    """How seconds and memory grow with nodes: fitted over all sizes, and from the second largest to the largest.

    Start-up makes the first one look better than it is; the second one hardly knows start-up.
    """
    series: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if point.seconds:
            series.setdefault((point.model, point.tool), []).append(point)
    lines = []
    for (model, tool), measured in series.items():
        found = slopes(measured)
        if found:
            lines.append([model, tool, *(f"{slope:.2f}" for slope in found)])
    return markdown(["graph", "tool", "seconds", "seconds, largest two", "memory"], lines) if lines else ""


def slopes(measured: Iterable[Point]) -> tuple[float, ...]:
    """The exponents of one tool on one graph: of seconds, of those of the two largest, of memory; none of one size."""
    ordered = sorted((point for point in measured if point.seconds), key=lambda point: point.nodes)
    sizes = [point.nodes for point in ordered]
    if len(set(sizes)) < 2:
        return ()
    seconds = [statistics.median(point.seconds) for point in ordered]
    peaks = [statistics.median(point.peaks) for point in ordered]
    return exponent(sizes, seconds), exponent(sizes[-2:], seconds[-2:]), exponent(sizes, peaks)


def too_steep(points: Iterable[Point]) -> list[str]:
    """The graphs on which ortopt's time or memory grows faster than it may, or which it does not finish."""
    series: dict[str, list[Point]] = {}
    for point in points:
        if point.tool == "ortopt":
            series.setdefault(point.model, []).append(point)
    return [
        model
        for model, measured in series.items()
        if any(point.outcome != "ok" for point in measured) or max(slopes(measured), default=0.0) > MAX_EXPONENT
    ]


def main() -> None:
    """Read the command line, measure, write scale.json and scale.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="nodes by commas; empty leaves graphs out")
    sizes_of_shapes = ",".join(map(str, SHAPE_SIZES))
    parser.add_argument("--shapes", default=sizes_of_shapes, help="the same of graphs of which only one thing is many")
    parser.add_argument(
        "--tools", help=f"names by commas (default {','.join(SCALE_TOOLS)}, for big {','.join(BIG_TOOLS)})"
    )
    parser.add_argument("--big", type=float, default=3.0, help="GB of external data; 0 leaves both big models out")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each tool on each model (default 3)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds that a run may take (default 1800)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out", help="folder of scale.json and scale.md")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error("--repeat is at least 1")
    sizes = [int(size) for size in options.sizes.split(",") if size]
    used = tuple(options.tools.split(",")) if options.tools else None
    shapes = [int(size) for size in options.shapes.split(",") if size]
    runs = [
        generated(GENERATORS, sizes, used or SCALE_TOOLS, options.repeat, options.timeout),
        generated(SHAPES, shapes, used or SHAPE_TOOLS, options.repeat, options.timeout),
    ]
    if options.big:
        runs.append(heavy(int(options.big * 1e9), used or BIG_TOOLS, options.repeat, options.timeout))
    points: list[Point] = []
    for point in chain.from_iterable(runs):
        points.append(point)
        write(points, options.repeat, options.out)  # what has been measured is never lost
    print(report(points))
    if steep := too_steep(points):
        sys.exit(f"with an exponent above {MAX_EXPONENT}, or not done: {', '.join(steep)}")


if __name__ == "__main__":
    main()

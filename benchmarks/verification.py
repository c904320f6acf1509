"""What verification adds to a run: `python -m benchmarks.verification`, on the zoo, whole processes.

Beside it stands one session of the original, without optimization, and two runs of it, in a process of its own: that
is the least that a comparison of the two can cost.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.process import ROOT, measure
from benchmarks.tables import markdown, number
from ortopt import zoo


def main() -> None:
    """Read the command line, measure, print the table."""
    if sys.argv[1:2] == ["child"]:
        print(_load_and_run_twice(Path(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verification", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(zoo.names()), help="names of zoo models, with commas")
    parser.add_argument("--repeat", type=int, default=3, help="how often each is measured; medians count")
    options = parser.parse_args()
    lines: list[list[str]] = []
    ratios: list[float] = []
    sums = [0.0, 0.0, 0.0]
    with tempfile.TemporaryDirectory(prefix="ortopt-bench-") as folder:
        for name in options.models.split(","):
            print(name, file=sys.stderr, flush=True)
            path = zoo.cached(name)
            rows = [_row(path, Path(folder, "out.onnx")) for _ in range(options.repeat)]
            without, verified, plain = (statistics.median(column) for column in zip(*rows, strict=True))
            ratios.append(max(verified - without, 0.001) / plain)
            lines.append([name, *map(number, (without, verified, plain)), f"{ratios[-1]:.1f}"])
            sums = [total + one for total, one in zip(sums, (without, verified, plain), strict=True)]
    lines.append(["sum", *map(number, sums), f"{(sums[1] - sums[0]) / sums[2]:.2f}"])
    lines.append(["geometric mean", "", "", "", f"{statistics.geometric_mean(ratios):.2f}"])
    print(markdown(["model", "without, s", "with, s", "one load, two runs, s", "added / that"], lines))


def _row(path: Path, output: Path) -> tuple[float, float, float]:
    """Seconds of a run without verification, of one with it, and of one load and two runs of the original."""
    command: list[str | Path] = [sys.executable, "-m", "ortopt", "optimize", path, "-q", "-o", output]
    without, verified = measure([*command, "--no-verify"]), measure(command)
    for run in (without, verified):
        if not run.ok:
            raise SystemExit(f"{path.stem}: {run.outcome}")
    child = [sys.executable, "-m", "benchmarks.verification", "child", str(path)]
    done = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=True)
    return without.seconds, verified.seconds, float(done.stdout)


def _load_and_run_twice(path: Path) -> float:
    """Seconds, of a member of the zoo; imports and the drawing of inputs are not counted."""
    import onnxruntime

    inputs = zoo.inputs(path.stem)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    started = time.perf_counter()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        session.run(None, inputs)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

"""What `ortopt check` costs: `python -m benchmarks.regression`.

Parts: ``jobs`` compares the zoo with ``--jobs`` to the sum of single runs, ``many`` checks a thousand small models,
``overhead`` is the CPU time per model over ``ortopt optimize --json``, ``latency`` shows that a slower result is found
by measuring it.

Ends with exit status 1 if a slower result is not found, or a run does not end with 0.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.process import numbers_of_threads
from benchmarks.tables import markdown, number
from ortopt import zoo
from ortopt.regression.comparison import compare
from ortopt.regression.latency import Latency
from ortopt.regression.thresholds import DEFAULTS

_SMALL = ("lstm_tagger__ts13", "control_flow__script17", "bert_small__ts17", "t5_encoder__ts17", "resnet18__ts13nf")


def timed(command: Sequence[str | Path]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a command and of all that it starts.

    Raises:
        SystemExit: It did not end with 0.
    """
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "ortopt", *map(str, command)], capture_output=True, text=True, check=False
    )
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{command}: exit {done.returncode}: {done.stderr[-500:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _singles(models: Sequence[str], folder: Path) -> tuple[float, float]:
    runs = [
        timed(["optimize", zoo.cached(name), "-q", "-o", folder / "o.onnx", "--json", folder / "o.json"])
        for name in models
    ]
    return sum(run[0] for run in runs), sum(run[1] for run in runs)


def jobs(models: Sequence[str]) -> list[list[str]]:
    """The zoo with a job for each processor, two at most, and its models one by one."""
    count = max(numbers_of_threads())
    with tempfile.TemporaryDirectory() as name:
        single, single_cpu = _singles(models, Path(name))
        both, both_cpu = timed(["check", *(f"zoo:{model}" for model in models), "--jobs", str(count), "-q"])
    share = both / (single / count)
    return [
        [f"{len(models)} models, sum of single runs", f"{number(single)} s, {number(single_cpu)} s of CPU"],
        [
            f"{len(models)} models, check --jobs {count}",
            f"{number(both)} s, {share:.2f} of the sum divided by {count}, {number(both_cpu)} s of CPU",
        ],
    ]


def overhead(models: Sequence[str]) -> list[list[str]]:
    """CPU seconds of a model in a check, over those of ``optimize --json``."""
    with tempfile.TemporaryDirectory() as name:
        _, single = _singles(models, Path(name))
        _, together = timed(["check", *(f"zoo:{model}" for model in models), "-q"])
    return [["CPU per model over optimize --json", f"{(together - single) / len(models):+.2f} s"]]


def many(count: int) -> list[list[str]]:
    """Many small models."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "models")
        folder.mkdir()
        for index in range(count):
            onnx.save(_products(1 + index % 3, seed=index), folder / f"{index:04}.onnx")
        jobs_at_once = max(numbers_of_threads())
        seconds, cpu = timed(["check", folder, "--jobs", str(jobs_at_once), "-q"])
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    row = f"{number(seconds)} s, {cpu / count:.2f} s of CPU a model, largest process {peak:.0f} MiB"
    return [[f"{count} small models, --jobs {jobs_at_once}", row]]


def _products(count: int, *, seed: int = 0, size: int = 16) -> onnx.ModelProto:
    """A model of some products of matrices, one after the other."""
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal((size, size), np.float32) / size**0.5 for _ in range(count)]
    names = ["x", *(f"t{index}" for index in range(1, count)), "y"]
    nodes = [onnx.helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(count)]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, size]) for name in ("x", "y")]
    tensors = [onnx.numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    graph = onnx.helper.make_graph(nodes, "products", values[:1], values[1:], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def latency() -> list[list[str]]:
    """A result as fast as its original, and one that does half as much again, measured.

    Raises:
        SystemExit: The slower one is not found, or the other one is.
    """
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in (4, 6):
            onnx.save(_products(count, size=512), folder / f"{count}.onnx")
        order: dict[str, Any] = {"path": str(folder / "4.onnx"), "zoo": None, "inputs": None, "options": {}}
        for count, kinds in ((4, set()), (6, {"worse"})):
            found = Latency()(order, folder / f"{count}.onnx")
            assert found is not None
            baseline = {"latency": {"ratio": 1.0, "low": 1.0, "high": 1.0}}
            told = {row.kind for row in compare({"latency": found}, baseline, DEFAULTS, same_versions=True)}
            text = (
                f"{found['ratio']:.2f} ({found['low']:.2f} to {found['high']:.2f}): {'worse' if told else 'not worse'}"
            )
            rows.append([f"latency of a result with {count} products, of 4", text])
            if told != kinds:
                raise SystemExit(f"a result with {count} products of an original with 4 is {text}")
    return rows


def main() -> None:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regression", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="jobs,many,overhead,latency", help="by commas (default all)")
    parser.add_argument("--models", default="", help="models of the zoo, by commas (default all; overhead: five)")
    parser.add_argument("--count", type=int, default=1000, help="small models (default 1000)")
    options = parser.parse_args()
    models = options.models.split(",") if options.models else []
    parts: dict[str, Callable[[], list[list[str]]]] = {
        "jobs": lambda: jobs(models or zoo.names()),
        "many": lambda: many(options.count),
        "overhead": lambda: overhead(models or _SMALL),
        "latency": latency,
    }
    rows = [row for part in options.parts.split(",") for row in parts[part]()]
    print(markdown(["what", "measured"], rows))


if __name__ == "__main__":
    main()

"""Conversions to float16 side by side on the zoo: ``python -m benchmarks.half_precision`` (a part of ``make bench``).

Each tool converts in a process of its own, from nothing to the written file. A result counts as loaded if ONNX Runtime
makes a session of it; its error is that of a copy that rounds each result to 16 bits, as a GPU does, on the inputs of
the verification (`ortopt.half_precision.rounded_copy` says why a plain run on the CPU shows nothing).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from benchmarks.process import measure
from benchmarks.tables import markdown
from ortopt import zoo
from ortopt.analysis import shapes
from ortopt.graph import scope
from ortopt.half_precision.conversion import casts
from ortopt.half_precision.rounded_copy import rounded_copy
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.verification.slice_errors import slice_error

TOLERANCE = 1e-2


@dataclass
class Row:
    """What became of one model.

    Attributes:
        model: Its name.
        tool: The tool's name.
        outcome: ``ok``, or what went wrong.
        error: The worst error of an output; None if it does not run.
        casts: Casts between floats that are left.
        seconds: From nothing to the written file.
        peak: The most memory that was resident, in bytes.
        nbytes: The size of the result's file.
    """

    model: str
    tool: str
    outcome: str
    error: float | None = None
    casts: int = 0
    seconds: float = 0.0
    peak: int = 0
    nbytes: int = 0


def _ortopt(source: str, target: str) -> None:
    import ortopt

    ortopt.optimize(source, float16=True, inputs=zoo.inputs(Path(source).stem), strict=False).save(target)


def _ortopt_alone(source: str, target: str) -> None:
    import ortopt

    ortopt.optimize(source, float16=True, level=0, verify=False).save(target)


def _common(source: str, target: str) -> None:
    from onnxconverter_common import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def _onnxruntime(source: str, target: str) -> None:
    from onnxruntime.transformers import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


TOOLS: Mapping[str, Callable[[str, str], None]] = {
    "ortopt --float16": _ortopt,
    "ortopt -O0 --float16 --no-verify": _ortopt_alone,
    "onnxconverter-common": _common,
    "onnxruntime.transformers": _onnxruntime,
}


def _run(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(to_bytes(model), options, ["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def judge(name: str, result: str, answer: str) -> None:
    """Write what a result is: whether it loads and runs, its worst error, its Casts.

    Args:
        name: The model's name in the zoo.
        result: The result's file.
        answer: The file to write to.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    onnxruntime.InferenceSession(result, options, ["CPUExecutionProvider"])
    model = load(result)
    scope.attach(model, Options())
    shapes.infer_model(model)
    feeds = dict(zoo.inputs(name))
    pairs = zip(_run(load(zoo.cached(name)), feeds), _run(rounded_copy(model, ir.DataType.FLOAT16), feeds), strict=True)
    error = max((slice_error(*pair) for pair in pairs), default=0.0)
    Path(answer).write_text(json.dumps({"error": error, "casts": sum(1 for _ in casts(model))}), encoding="utf-8")


def _judged(row: Row, result: Path) -> Row:
    """A row with what its result is; a model that ends its process is judged, too."""
    row.nbytes = result.stat().st_size
    answer = result.with_suffix(".json")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "benchmarks.half_precision",
        "--judge",
        row.model,
        result,
        answer,
    ]
    done = measure(command)
    if done.ok:
        facts = json.loads(answer.read_text(encoding="utf-8"))
        row.error, row.casts = facts["error"], facts["casts"]
    else:
        row.outcome = f"does not run: {done.outcome}"
    return row


def rows(models: Sequence[str], tools: Sequence[str]) -> list[Row]:
    """Convert, and look at what comes out.

    Args:
        models: Names in the zoo.
        tools: Names in `TOOLS`.
    """
    found: list[Row] = []
    for name in models:
        original = Path(zoo.cached(name))
        for tool in tools:
            with tempfile.TemporaryDirectory() as folder:
                target = Path(folder, "result.onnx")
                command: list[str | Path] = [
                    sys.executable,
                    "-m",
                    "benchmarks.half_precision",
                    "--convert",
                    tool,
                    original,
                    target,
                ]
                done = measure(command)
                row = Row(name, tool, done.outcome, seconds=done.seconds, peak=done.peak)
                found.append(_judged(row, target) if done.ok else row)
                print(json.dumps(asdict(found[-1])), flush=True)
    return found


def summary(found: Sequence[Row]) -> str:
    """A table with a row for each tool; sums are over the models that all tools converted.

    Args:
        found: The rows.
    """
    tools = list(dict.fromkeys(row.tool for row in found))
    running = [{row.model for row in found if row.tool == tool and row.error is not None} for tool in tools]
    shared = set.intersection(*running)
    table = []
    for tool in tools:
        own = [row for row in found if row.tool == tool]
        same = [row for row in own if row.model in shared]
        errors = [row.error for row in own if row.error is not None]
        finite = [error for error in errors if math.isfinite(error)]
        table.append(
            (
                tool,
                f"{len(errors)} of {len(own)}",
                f"{sum(error <= TOLERANCE for error in errors)} of {len(own)}",
                f"{max(finite, default=math.nan):.2g}",
                str(sum(row.casts for row in same)),
                f"{sum(row.seconds for row in same):.0f}",
                f"{max((row.peak for row in same), default=0) / 1e6:.0f}",
                f"{sum(row.nbytes for row in same) / 1e6:.0f}",
            )
        )
    head = ("tool", "run", "within 0.01", "worst finite error", "Casts", "seconds", "peak MB", "MB")
    return markdown(head, table) + f"\nCasts, seconds and sizes are of the {len(shared)} models that all tools convert."


def main() -> None:
    """Convert one model in a child process, or all of them and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="names in the zoo, separated by commas")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--judge", nargs=3, metavar=("MODEL", "IN", "OUT"), help="what the children do")
    parser.add_argument("--convert", nargs=3, metavar=("TOOL", "IN", "OUT"), help="what the children do")
    arguments = parser.parse_args()
    if arguments.convert:
        tool, source, target = arguments.convert
        TOOLS[tool](source, target)
        return
    if arguments.judge:
        judge(*arguments.judge)
        return
    models = arguments.models.split(",") if arguments.models else [name for name in zoo.names() if is_float(name)]
    print(summary(rows(models, arguments.tools.split(","))))


def is_float(name: str) -> bool:
    """Whether a model of the zoo is of float32: neither quantized nor of 16 bits."""
    return not any(part in name for part in ("int4", "int8", "fp16", "qdq"))


if __name__ == "__main__":
    main()

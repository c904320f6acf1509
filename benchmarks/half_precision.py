"""Conversions to float16 side by side on the zoo: ``python -m benchmarks.half_precision`` (a part of ``make bench``).

``--models`` takes names in the zoo and paths of files. Each tool converts in a process of its own, from nothing to the
written file. A result counts as loaded if ONNX Runtime makes a session of it; its error is that of a copy that rounds
each result to 16 bits, as a GPU does, on the inputs of the verification, or for a file on inputs that no tool has seen
(`ortopt.half_precision.rounded_copy` says why a plain run on the CPU shows nothing).
"""

from __future__ import annotations

import argparse
import contextlib
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
from ortopt.optimization.half_precision_measurement import slice_error
from ortopt.options import Options
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.verification.draws import Draw
from ortopt.verification.inputs import draw_inputs
from ortopt.verification.randomness import GivenValues

TOLERANCE = 1e-2

_UNSEEN = 7
"""The seed of inputs for a file that is not of the zoo; not one that a conversion has measured with."""


@dataclass
class Row:
    """What became of one model.

    Attributes:
        model: Its name.
        tool: The tool's name.
        outcome: ``ok``, or what went wrong.
        error: The worst error of an output; None if it does not run.
        casts: Casts between floats that are left.
        all_casts: Casts of any types that are left.
        loaded_casts: Casts of any types once ONNX Runtime has loaded the model on the CPU, where it adds its own.
        nodes: Nodes that are left.
        seconds: From nothing to the written file.
        peak: The most memory that was resident, in bytes.
        nbytes: The size of the result's file.
    """

    model: str
    tool: str
    outcome: str
    error: float | None = None
    casts: int = 0
    all_casts: int = 0
    loaded_casts: int = 0
    nodes: int = 0
    seconds: float = 0.0
    peak: int = 0
    nbytes: int = 0


def _ortopt(source: str, target: str) -> None:
    import ortopt

    name = Path(source).stem
    inputs = zoo.inputs(name) if name in zoo.names() else None
    ortopt.optimize(source, float16=True, inputs=inputs, strict=False).save(target)


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


def judge(source: str, result: str, answer: str) -> None:
    """Write what a result is: whether it loads and runs, its worst error, its Casts.

    Args:
        source: The original's file.
        result: The result's file.
        answer: The file to write to.
    """
    loaded = Path(result).with_suffix(".loaded.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(loaded)
    onnxruntime.InferenceSession(result, options, ["CPUExecutionProvider"])
    model = load(result)
    _infer(model)
    original = load(source)
    name = Path(source).stem
    feeds = dict(zoo.inputs(name)) if name in zoo.names() else _drawn(original)
    copy = rounded_copy(model, ir.DataType.FLOAT16)
    if GivenValues.are_needed(original):  # both draw the same random numbers
        fixed = GivenValues(original)
        original, (copy, _) = fixed.original, fixed.of(copy)
    pairs = zip(_run(original, feeds), _run(copy, feeds), strict=True)
    facts = {
        "error": max((slice_error(*pair) for pair in pairs), default=0.0),
        "casts": sum(1 for _ in casts(model)),
        "all_casts": _count(model, "Cast"),
        "loaded_casts": _loaded_casts(onnx.load(loaded).graph),
        "nodes": _count(model),
    }
    Path(answer).write_text(json.dumps(facts), encoding="utf-8")


def _drawn(original: ir.Model) -> Mapping[str, np.ndarray]:
    """Inputs with which a model runs."""
    for how in (Draw(), Draw(size=8), Draw(size=4), Draw(size=1)):
        feeds = draw_inputs(original, seed=_UNSEEN, how=how)
        with contextlib.suppress(Exception):  # sizes that do not belong together, for example
            _run(original, feeds)
            return feeds
    raise ValueError(f"no inputs are found with which {original.graph.name!r} runs")


def _infer(model: ir.Model) -> None:
    scope.attach(model, Options())
    shapes.infer_model(model)


def _count(model: ir.Model, op: str = "") -> int:
    return sum(1 for graph in scope.graphs(model) for node in graph if op in ("", node.op_type))


def _loaded_casts(graph: onnx.GraphProto) -> int:
    """The Casts of a graph that ONNX Runtime wrote: not a valid one where it added Casts in branches of one name."""
    inner = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return sum(1 for node in graph.node if node.op_type == "Cast") + sum(map(_loaded_casts, inner))


def _judged(row: Row, source: Path, result: Path) -> Row:
    """A row with what its result is; a model that ends its process is judged, too."""
    row.nbytes = result.stat().st_size
    answer = result.with_suffix(".json")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "benchmarks.half_precision",
        "--judge",
        source,
        result,
        answer,
    ]
    done = measure(command)
    if done.ok:
        facts = json.loads(answer.read_text(encoding="utf-8"))
        for name, fact in facts.items():
            setattr(row, name, fact)
    else:
        row.outcome = f"does not run: {done.outcome}"
    return row


def rows(models: Sequence[str], tools: Sequence[str]) -> list[Row]:
    """Convert, and look at what comes out.

    Args:
        models: Names in the zoo, or paths.
        tools: Names in `TOOLS`.
    """
    found: list[Row] = []
    for name in models:
        original = Path(zoo.cached(name) if name in zoo.names() else name)
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
                row = Row(original.stem, tool, done.outcome, seconds=done.seconds, peak=done.peak)
                found.append(_judged(row, original, target) if done.ok else row)
                print(json.dumps(asdict(found[-1])), file=sys.stderr, flush=True)
    return found


_COUNTS: Mapping[str, Callable[[Row], int]] = {
    "Casts": lambda row: row.casts,
    "all Casts": lambda row: row.all_casts,
    "Casts on the CPU": lambda row: row.loaded_casts,
    "nodes": lambda row: row.nodes,
}
"""The columns of counts."""


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
                *(str(sum(count(row) for row in same)) for count in _COUNTS.values()),
                f"{sum(row.seconds for row in same):.0f}",
                f"{max((row.peak for row in same), default=0) / 1e6:.0f}",
                f"{sum(row.nbytes for row in same) / 1e6:.0f}",
            )
        )
    head = ("tool", "run", "within 0.01", "worst finite error", *_COUNTS, "seconds", "peak MB", "MB")
    return markdown(head, table) + f"\nCasts, seconds and sizes are of the {len(shared)} models that all tools convert."


def main() -> None:
    """Convert one model in a child process, or all of them and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="names in the zoo, or paths, separated by commas")
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

"""What is compared: how each tool is started, and what its process does (`python -m benchmarks.tools TOOL IN OUT`)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

OURS = ("ortopt", "ortopt_onnx1")
PEERS = ("onnxslim", "onnxsim", "onnxscript")
ORT = ("ort_basic", "ort_extended")
ALL = (*OURS, *PEERS, *ORT)
FUSIONS = "onnxscript_ort"
"""onnxscript's optimizer, then its fusions for ONNX Runtime."""

TUNED = "ortopt_tuned"
_OPTIONS = {"ortopt": ("-O3",), "ortopt_onnx1": ("-O1", "--target", "onnx")}
_ANY_SIZE = 1 << 40  # bytes
_INLINE_LIMIT = 1_900_000_000  # protobuf writes 2 GB at most, and the graph needs some of it


def command(
    tool: str, source: Path, out: Path, *, unlimited: bool = False, tune_seconds: float = 60.0
) -> list[str | Path]:
    """What to run so that `tool` reads `source` and writes `out`, as a user would: in one process, from nothing.

    Args:
        tool: A name in `ALL`, `FUSIONS` or `TUNED`.
        source: The model.
        out: Where the result goes.
        unlimited: Whether constants may be folded whatever they weigh; else each tool has its own default.
        tune_seconds: How long `TUNED` may measure.
    """
    if tool == TUNED:
        tuning = ("--tune", "--tune-seconds", str(tune_seconds))
        return [*command("ortopt", source, out, unlimited=unlimited), *tuning]
    if tool in _OPTIONS:
        quiet = ("--no-verify", "--quiet", *(("--max-growth", str(_ANY_SIZE)) if unlimited else ()))
        return [sys.executable, "-m", "ortopt", "optimize", source, "-o", out, *_OPTIONS[tool], *quiet]
    return [sys.executable, "-m", "benchmarks.tools", tool, source, out, *(("unlimited",) if unlimited else ())]


def versions() -> dict[str, str]:
    """The version of every package that takes part and is installed."""
    found = {}
    for name in ("ortopt", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-gpu", *PEERS, "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def missing(tool: str) -> bool:
    """Whether the tool's package is not installed."""
    package = "onnxscript" if tool == FUSIONS else tool
    return package in PEERS and importlib.util.find_spec(package) is None


def _onnxslim(source: str, out: str) -> None:
    import onnxslim

    onnxslim.slim(source, out)


def _onnxsim(source: str, out: str) -> None:
    import onnx
    import onnxsim

    model, _ = onnxsim.simplify(source)
    onnx.save(model, out)


def _onnxscript(source: str, out: str, **limits: Any) -> None:
    import onnx_ir
    from onnxscript import optimizer

    model = onnx_ir.load(source)
    optimizer.optimize(model, **limits)
    onnx_ir.save(model, out)


def _onnxscript_ort(source: str, out: str) -> None:
    import onnx_ir
    from onnxscript import optimizer
    from onnxscript.rewriter import ort_fusions

    model = onnx_ir.load(source)
    optimizer.optimize(model)
    model, _ = ort_fusions.optimize_for_ort(model)
    onnx_ir.save(model, out)


def _onnx_ir(source: str, out: str) -> None:
    import onnx_ir

    onnx_ir.save(onnx_ir.load(source), out)


def _ort(level: str, *, lean: bool = False, unlimited: bool = False) -> Callable[[str, str], None]:
    """ONNX Runtime's offline optimization; `lean` leaves out its memory planner, which is quadratic in nodes."""

    def optimize(source: str, out: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = out
        options.log_severity_level = 3
        if unlimited:
            options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(_ANY_SIZE))
        if lean:
            options.enable_mem_reuse = options.enable_mem_pattern = False
        if sum(file.stat().st_size for file in _files(Path(source))) > _INLINE_LIMIT:
            weights = f"{Path(out).name}.data"
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
            options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return optimize


def _files(model: Path) -> list[Path]:
    """The model's file and, as the generators name it, its data."""
    return [path for path in (model, model.with_name(f"{model.name}.data")) if path.exists()]


_WORKERS: Mapping[str, Callable[[str, str], None]] = {
    "onnxslim": _onnxslim,
    "onnxsim": _onnxsim,
    "onnxscript": _onnxscript,
    FUSIONS: _onnxscript_ort,
    "onnx_ir": _onnx_ir,
    "ort_basic": _ort("ORT_ENABLE_BASIC"),
    "ort_extended": _ort("ORT_ENABLE_EXTENDED"),
    "ort_extended_lean": _ort("ORT_ENABLE_EXTENDED", lean=True),
    "ort_all": _ort("ORT_ENABLE_ALL"),
}
_UNLIMITED_WORKERS: Mapping[str, Callable[[str, str], None]] = {
    **_WORKERS,  # onnxslim has no limit, onnxsim one of 1.5 GB that it refuses to raise beyond 2
    "onnxscript": partial(_onnxscript, input_size_limit=_ANY_SIZE, output_size_limit=_ANY_SIZE),
    "ort_basic": _ort("ORT_ENABLE_BASIC", unlimited=True),
    "ort_extended": _ort("ORT_ENABLE_EXTENDED", unlimited=True),
}


def work(tool: str, source: str, out: str, *, unlimited: bool = False) -> None:
    """Let a tool of this process read `source` and write `out`.

    Args:
        tool: A name of a peer, of ONNX Runtime or `FUSIONS`.
        source: The model.
        out: Where the result goes.
        unlimited: Whether constants may be folded whatever they weigh.
    """
    (_UNLIMITED_WORKERS if unlimited else _WORKERS)[tool](source, out)


if __name__ == "__main__":
    work(*sys.argv[1:4], unlimited=sys.argv[4:] == ["unlimited"])

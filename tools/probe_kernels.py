"""Refresh ``kernel-facts.json``: from which release on the forms of `ortopt.analysis.kernel_history` are right.

::

    python -m tools.probe_kernels --releases 1.17,1.18,newest

Each probe is run on each release, in an environment of its own (`tools.versions`), a few times, without ONNX Runtime's
optimizations unless it is these that go wrong, and compared with the same computed in double. ``right_since`` is the
first release from which on each was right. Of each release the version is kept, and the digest of its library.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ortopt.analysis.kernel_history import FACTS, Fact
from ortopt.verification import runtimes
from ortopt.verification.input_sets import store_inputs
from ortopt.verification.process import Worker, WorkerError
from ortopt.verification.worker import restore
from tools import versions

ROOT: Final = Path(__file__).resolve().parent.parent
PATH: Final = ROOT / "ortopt" / "analysis" / "data" / "kernel-facts.json"

_RUNS: Final = 4
"""Runs of a probe: what reads memory that nobody has written is right now and then."""

_DIGEST: Final = """
import hashlib, onnxruntime.capi.onnxruntime_pybind11_state as state
print(hashlib.sha256(open(state.__file__, "rb").read()).hexdigest()[:16])
"""

_TOLERANCE: Final[Mapping[str, float]] = {"float16": 1e-2, "float32": 1e-4}


def model_of(fact: Fact) -> onnx.ModelProto:
    """The model of a fact's probe."""
    return onnx.parser.parse_model(fact.probe)


def inputs_of(model: onnx.ModelProto, seed: int) -> dict[str, Any]:
    """Inputs of a probe.

    Args:
        model: The probe.
        seed: Of what is drawn.
    """
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
        for value in model.graph.input
    }


def expected(fact: Fact, inputs: Mapping[str, Any]) -> Any:
    """What a probe should give, in double."""
    evaluator = ReferenceEvaluator(onnx.parser.parse_model(fact.reference))
    return evaluator.run(None, {name: array.astype(np.float64) for name, array in inputs.items()})[0]


def error(got: Any, wanted: Any) -> str:
    """What is wrong about an output; empty if nothing is."""
    if got.shape != wanted.shape:
        return "another shape"
    if not got.size:
        return ""
    if not np.array_equal(np.isfinite(got), np.isfinite(wanted)):
        return "NaN"
    most = float(np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max())
    return f"an error of {most:.2g}" if most > _TOLERANCE[got.dtype.name] else ""


def measure(fact: Fact, worker: Worker, folder: Path) -> str:
    """What is wrong about a probe in a worker's runtime; empty if nothing is.

    Args:
        fact: The fact.
        worker: Runs it.
        folder: For files.
    """
    model = model_of(fact)
    path = folder / "probe.onnx"
    onnx.save(model, path)
    try:
        worker.open(path, path.stat().st_size, None, optimize=fact.as_loaded)
        for seed in range(_RUNS):
            inputs = inputs_of(model, seed)
            source, target = folder / f"in{seed}", folder / f"out{seed}"
            store_inputs(inputs, source)
            got = restore(target, worker.run(source, target)[0])
            if wrong := error(got, expected(fact, inputs)):
                return wrong
    except WorkerError as refused:
        return "it ends its process" if refused.died else "it is refused"
    return ""


def measured(releases: Sequence[str]) -> dict[str, Any]:
    """What is wrong about each fact's probe on each release."""
    names: list[str] = []
    digests: dict[str, str] = {}
    wrong: dict[str, dict[str, str]] = {fact.name: {} for fact in FACTS}
    for release in releases:
        python, why = versions.runtime_environment(
            release, lambda command: subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        )
        if python is None:
            sys.exit(f"onnxruntime {release} cannot be installed: {why}")
        runtime = runtimes.find(python)
        version = runtime.name.split()[-1]
        names.append(version)
        digests[version] = library_digest(python)
        for fact in FACTS:
            with tempfile.TemporaryDirectory() as folder, Worker(("CPUExecutionProvider",), runtime=runtime) as worker:
                if told := measure(fact, worker, Path(folder)):
                    wrong[fact.name][version] = told
        print(version, {name: told[version] for name, told in wrong.items() if version in told}, flush=True)
    facts = {name: {"right_since": _right_since(names, told), "wrong": told} for name, told in wrong.items()}
    return {"releases": digests, "facts": facts}


def library_digest(python: str) -> str:
    """The digest of the library of an environment's ONNX Runtime.

    Args:
        python: The environment's Python.
    """
    asked = subprocess.run([python, "-c", _DIGEST], capture_output=True, text=True, check=True)
    return asked.stdout.split()[-1]


def _right_since(releases: Sequence[str], wrong: Mapping[str, str]) -> str:
    right = list(releases)
    for release in releases:
        if release in wrong:
            right = list(releases[releases.index(release) + 1 :])
    return ".".join(right[0].split(".")[:2])


def main() -> None:
    """Write what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tools.probe_kernels", description=__doc__)
    parser.add_argument("--releases", required=True, help="e.g. 1.17,1.18,newest, from the oldest on")
    data = measured(parser.parse_args().releases.split(","))
    PATH.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

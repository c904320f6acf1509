"""``python -m fuzzing.releases --releases 1.20,newest``: the passes' examples on releases of ONNX Runtime.

Each example of the passes' tests is optimized for a release (``min_onnxruntime``), and runs there and, as it was, on
the ONNX Runtime that is installed here: the numbers must agree but for rounding, and the result must load wherever its
original does. Exit code 1 where one does not. A release runs in an environment of its own (`tools.versions`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from fuzzing.mutants.examples import Example, examples, names
from ortopt import OrtoptError, optimize
from ortopt.analysis import releases, shapes
from ortopt.opset_conversion import raising
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.verification import runtimes
from ortopt.verification.input_sets import store_inputs
from ortopt.verification.inputs import draw_inputs
from ortopt.verification.process import Worker, WorkerError
from ortopt.verification.worker import restore
from tools import versions

ROOT: Final = Path(__file__).parents[1]
CPU: Final = ("CPUExecutionProvider",)

_ROUNDING: Final = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-3}
"""What is taken for rounding, of an output's scale: wrong numbers are looked for, and these are far off."""


@dataclass(frozen=True)
class Finding:
    """An example that a release does not compute right.

    Attributes:
        release: The release.
        transformer: The pass of which it is an example.
        number: Which one, from 0.
        told: What is wrong.
    """

    release: str
    transformer: str
    number: int
    told: str

    def __str__(self) -> str:
        return f"{self.release}: {self.transformer} {self.number}: {self.told}"


class Runner:
    """Runs models in a worker, one after the other, which starts again where a model has ended it.

    Args:
        folder: For files.
        runtime: The runtime; None is the one that is installed here.
    """

    def __init__(self, folder: Path, runtime: Any = None) -> None:
        self._folder = folder
        self._runtime = runtime
        self._worker: Worker | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, model: bytes, inputs: dict[str, Any]) -> list[Any]:
        """What a model gives.

        Args:
            model: A serialized model.
            inputs: Arrays by name.

        Raises:
            WorkerError: It is refused, or ends its process.
        """
        if self._worker is None:
            self._worker = Worker(CPU, runtime=self._runtime)
        path, source, target = (self._folder / name for name in ("model.onnx", "in", "out"))
        path.write_bytes(model)
        store_inputs(inputs, source)
        try:
            self._worker.open(path, len(model), None)
            rows = self._worker.run(source, target)
        except WorkerError as error:
            if error.died:
                self._end()
            raise
        return [None if row is None else np.array(restore(target, row)) for row in rows]

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def difference(got: Sequence[Any], wanted: Sequence[Any]) -> str:
    """How outputs differ beyond rounding; empty where they do not."""
    for one, other in zip(got, wanted, strict=True):
        if one is None or other is None or one.dtype.kind not in "fiub":
            continue
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"{one.dtype}{list(one.shape)} instead of {other.dtype}{list(other.shape)}"
        if one.dtype.kind == "f":
            finite = np.isfinite(other)
            if not np.array_equal(np.isfinite(one), finite):
                return "other numbers are finite"
            scale = float(np.abs(other[finite].astype(np.float64)).max(initial=0.0)) or 1.0
            error = np.abs(one[finite].astype(np.float64) - other[finite].astype(np.float64)).max(initial=0.0)
            if error > _ROUNDING.get(one.dtype.name, 1e-3) * scale:
                return f"an error of {error / scale:.2g} of the output's scale"
        elif not np.array_equal(one, other):
            return "other integers"
    return ""


def examine(release: str, runner: Runner, here: Runner, passes: Sequence[str]) -> Iterator[Finding | None]:
    """Run all examples on a release; None for each that is right.

    Args:
        release: Major and minor version.
        runner: Runs models there.
        here: Runs models on the ONNX Runtime that is installed.
        passes: The passes of which examples are taken.
    """
    for name in passes:
        for number, example in enumerate(examples(name)):
            told = _examined(release, example, runner, here)
            if told is not None:
                yield Finding(release, name, number, told) if told else None


def _examined(release: str, example: Example, runner: Runner, here: Runner) -> str | None:
    """What is wrong about an example; None where its original is not right here or there, or nothing is done."""
    model = load(example.model.SerializeToString())
    version = model.opset_imports.get("", 1)
    if version > releases.newest_opset(releases.parse_release(release)):
        return None
    model.ir_version = max(8, raising.least_ir_version(version))
    original = to_bytes(model)
    typed = load(original)
    shapes.infer_model(typed)
    needed = releases.requirement(typed).onnxruntime
    if needed is not None and releases.parse_release(needed) > releases.parse_release(release):
        return None  # what it gives there is nothing to go by
    options = {key: value for key, value in example.options.items() if key != "min_onnxruntime"}
    try:
        inputs = example.inputs or dict(draw_inputs(model))
        wanted = here.run(original, inputs)
        result = to_bytes(optimize(model, level=3, verify=False, min_onnxruntime=release, **options).model)
    except (WorkerError, OrtoptError):
        return None  # it does not run here, or is made to be refused
    if result == original:
        return None
    try:
        told = difference(runner.run(result, inputs), wanted)
    except WorkerError as error:
        told = str(error)
    if not told:
        return ""
    try:  # random numbers, NaNs that may spread, what the release does to the original, too
        known = difference(here.run(result, inputs), wanted) or difference(runner.run(original, inputs), wanted)
    except WorkerError:
        return None
    return None if known else told


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzzing.releases", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--releases", default="1.20,1.23,1.27,newest", help="e.g. 1.20,newest")
    parser.add_argument("--passes", default="", help="passes whose examples run, A,B; all if it is left out")
    given = parser.parse_args()
    passes = [name for name in given.passes.split(",") if name] or names()
    findings = 0
    for release in given.releases.split(","):
        python, why = versions.runtime_environment(
            release, lambda command: subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        )
        if python is None:
            print(f"{release}: skipped ({why})")
            continue
        runtime = runtimes.find(python)
        version = releases.shown(releases.parse_release(runtime.name.split()[-1]))
        right = 0
        with (
            tempfile.TemporaryDirectory() as one,
            tempfile.TemporaryDirectory() as other,
            Runner(Path(one), runtime) as runner,
            Runner(Path(other)) as here,
        ):
            for found in examine(version, runner, here, passes):
                right += found is None
                if found is not None:
                    findings += 1
                    print(found, flush=True)
        print(f"{runtime.name}: {right} examples are right", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

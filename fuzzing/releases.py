"""``python -m fuzzing.releases --releases 1.20,newest``: results on the runtimes that they are for.

Each example of the passes' tests, each model of the zoo, or of a folder of your own, is optimized for a release
(``min_onnxruntime``), and runs there and, as it was, on the ONNX Runtime that is installed here: the numbers must agree
but for rounding, and the result must load wherever its original does. Exit code 1 where one does not, or where no
runtime can be installed. A release runs in an environment of its own (`tools.versions`). ``--runtime`` names another
runtime as ``--verify-with`` does: OpenVINO or onnxruntime-web, for which models are optimized with their target, or
MNN, with ``--target onnx``. With ``--provider`` such an ONNX Runtime runs them on that execution provider, and models
are optimized for its target; nodes that it does not take run on the CPU. With ``--seconds`` each result that is right
is measured in turns with its original (`fuzzing.turns`).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir

from fuzzing import turns
from fuzzing.mutants.examples import Example, examples, names
from ortopt import OrtoptError, optimize, semantics, zoo
from ortopt.analysis import releases, shapes, targets
from ortopt.analysis.providers import CPU, full_names
from ortopt.measurement.inputs import candidates
from ortopt.opset_conversion import raising
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.verification import runtimes
from ortopt.verification.input_sets import store_inputs
from ortopt.verification.inputs import Interface
from ortopt.verification.process import Worker, WorkerError
from ortopt.verification.start import Runtime
from ortopt.verification.worker import restore
from tools import versions

ROOT: Final = Path(__file__).parents[1]
_ROUNDING: Final = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-3}
"""What is taken for rounding, of an output's scale: wrong numbers are looked for, and these are far off."""


_TARGETS: Final = {"OpenVINO": "openvino", "ONNX Runtime Web": "web", "MNN": "onnx"}
"""By what the name of a runtime begins with, the target for it."""

_IN_HALF: Final = frozenset({"QNNExecutionProvider"})
"""Execution providers that compute what is of single precision in half precision."""

SMOKE: Final = ("attention_fusion", "gather_block_quantized_fusion", "lrn_decomposition", "matmul_nbits_fusion")
"""Passes of which forms are not right on all releases."""


@dataclass(frozen=True)
class Finding:
    """A model of which the result is not right on a runtime.

    Attributes:
        runtime: The runtime.
        model: What it is called.
        told: What is wrong.
    """

    runtime: str
    model: str
    told: str

    def __str__(self) -> str:
        return f"{self.runtime}: {self.model}: {self.told}"


def of_passes(passes: Sequence[str]) -> Iterator[tuple[str, Example]]:
    """The examples of passes, each with what it is called.

    Args:
        passes: Their names.
    """
    for name in passes:
        for number, example in enumerate(examples(name)):
            yield f"{name} {number}", example


def of_zoo(models: Iterable[str]) -> Iterator[tuple[str, Example]]:
    """Models of the zoo, each with what it is called, and the inputs that it is fed.

    Args:
        models: Their names.
    """
    for name in models:
        yield name, Example("", onnx.load(zoo.cached(name)), {}, dict(zoo.inputs(name)))


def of_folder(folder: Path) -> Iterator[tuple[str, Example]]:
    """The .onnx files of a folder, each with what it is called; inputs are drawn for them.

    Args:
        folder: The folder.
    """
    for path in sorted(folder.glob("*.onnx")):
        yield path.stem, Example("", onnx.load(path), {}, {})


class Runner:
    """Runs models in a worker, one after the other, which starts again where a model has ended it.

    Args:
        folder: For files.
        runtime: The runtime; None is the one that is installed here.
        helps: Whether the CPU runs what the runtime's execution providers do not take; else that is refused.

    Attributes:
        rounding: What is taken for rounding there at least, of an output's scale.
    """

    def __init__(self, folder: Path, runtime: Runtime | None = None, *, helps: bool = True) -> None:
        self._folder = folder
        self._runtime = runtime
        providers = () if runtime is None else runtime.providers
        self._providers = (*providers, CPU) if helps or not providers else providers
        self.rounding = 0.0 if _IN_HALF.isdisjoint(providers) else _ROUNDING["float16"]
        self._worker: Worker | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, model: bytes, inputs: dict[str, Any]) -> list[Any]:
        """What a model gives; see `run_all`."""
        return next(self.run_all(model, [inputs]))

    def run_all(self, model: bytes, sets: Iterable[dict[str, Any]], *, optimize: bool = False) -> Iterator[list[Any]]:
        """What a model gives for several sets of inputs, one after the other.

        Args:
            model: A serialized model.
            sets: For each an array by input name.
            optimize: Whether the runtime optimizes the model, where it can be told not to.

        Raises:
            WorkerError: The model is refused, or ends its process.
        """
        if self._worker is None:
            self._worker = Worker(self._providers, runtime=self._runtime)
        path, source, target = (self._folder / name for name in ("model.onnx", "in", "out"))
        path.write_bytes(model)
        try:
            self._worker.open(path, len(model), None, optimize=optimize)
            for inputs in sets:
                store_inputs(inputs, source)
                rows = self._worker.run(source, target)
                yield [None if row is None else np.array(restore(target, row)) for row in rows]
        except WorkerError as error:
            if error.died:
                self._end()
            raise

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def difference(got: Sequence[Any], wanted: Sequence[Any], least: float = 0.0) -> str:
    """How outputs differ beyond rounding; empty where they do not.

    Args:
        got: The outputs.
        wanted: The right ones.
        least: What is taken for rounding at least, of an output's scale.
    """
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
            if error > max(_ROUNDING.get(one.dtype.name, 1e-3), least) * scale:
                return f"an error of {error / scale:.2g} of the output's scale"
        elif not np.array_equal(one, other):
            return "other integers"
    return ""


@dataclass(frozen=True)
class Case:
    """A model and its result for a runtime.

    Attributes:
        original: The model.
        result: Its result.
        inputs: Arrays by name.
        wanted: What the model gives on the ONNX Runtime that is installed here.
    """

    original: bytes
    result: bytes
    inputs: dict[str, Any]
    wanted: list[Any]


def examine(
    runtime: Runtime,
    models: Iterable[tuple[str, Example]],
    runner: Runner,
    here: Runner,
    measure: Callable[[str, Case], None] | None = None,
    target: str | None = None,
) -> Iterator[Finding | None]:
    """Run the results of models on a runtime; None for each that is right.

    Args:
        runtime: The runtime.
        models: The models, each with what it is called.
        runner: Runs models there.
        here: Runs models on the ONNX Runtime that is installed.
        measure: Is given each result that is right there, with what its model is called.
        target: What the results are for, instead of the runtime's own target.
    """
    for name, example in models:
        case = _case(example, options_for(runtime, example.options, target), here)
        told = None if case is None else _told(case, runner, here)
        if case is not None and told is not None:
            yield Finding(runtime.name, name, told) if told else None
            if measure is not None and not told:
                measure(name, case)


def options_for(runtime: Runtime, given: dict[str, Any], target: str | None = None) -> dict[str, Any]:
    """Options of a run whose result is for a runtime.

    Args:
        runtime: The runtime.
        given: Other options.
        target: The target; None is that of the runtime.
    """
    options = {key: value for key, value in given.items() if key != "min_onnxruntime"}
    if target is None:
        own = (name for title, name in _TARGETS.items() if runtime.name.startswith(title))
        target = targets.implied(runtime.providers).value if runtime.providers else next(own, None)
    if target is not None:
        options["target"] = target
    if target in (None, "ort") and runtime.name.startswith("ONNX Runtime"):
        options["min_onnxruntime"] = releases.shown(releases.of_runtime(runtime.name))
    return options


def _case(example: Example, options: dict[str, Any], here: Runner) -> Case | None:
    """A model's result for a runtime; None where the original is not right here or not for it, or nothing is done."""
    model = load(example.model.SerializeToString())
    if any(semantics.is_random(node, model.functions) for node in model.graph):
        return None  # no two runs give the same
    version = model.opset_imports.get("", 1)
    model.ir_version = max(8, raising.least_ir_version(version))
    release = options.get("min_onnxruntime")
    if release is not None:
        typed = load(to_bytes(model))
        shapes.infer_model(typed)
        needed = releases.requirement(typed).onnxruntime
        if needed is not None and releases.parse_release(needed) > releases.parse_release(release):
            return None  # what it gives there is nothing to go by
    original = to_bytes(model)
    try:
        for inputs in [example.inputs] if example.inputs else _drawn(model):
            with contextlib.suppress(WorkerError):  # it does not run here at these sizes
                wanted = here.run(original, inputs)
                result = to_bytes(optimize(model, level=3, verify=False, **options).model)
                return None if result == original else Case(original, result, inputs, wanted)
    except OrtoptError:
        return None  # no inputs can be drawn, or it is made to be refused
    return None


def _drawn(model: ir.Model) -> Iterator[dict[str, Any]]:
    """Inputs as verification draws them, then at representative sizes, and at others in their place."""
    interface = Interface(model)
    yield dict(interface.draw())
    if interface.symbols:
        representative, others = candidates(model, {})
        for candidate in itertools.chain(*representative, others):
            yield candidate.draw(interface)


def _told(case: Case, runner: Runner, here: Runner) -> str | None:
    """What is wrong about a result; None where its original is not right here or there."""
    try:
        told = difference(runner.run(case.result, case.inputs), case.wanted, runner.rounding)
    except WorkerError as error:
        told = str(error)
    if not told:
        return ""
    try:  # random numbers, NaNs that may spread, what the release does to the original, too
        known = difference(here.run(case.result, case.inputs), case.wanted) or difference(
            runner.run(case.original, case.inputs), case.wanted, runner.rounding / 2
        )
    except WorkerError:
        return None
    return None if known else told


def environments(named: Sequence[str], others: Sequence[str], providers: Iterable[str] = ()) -> Iterator[Runtime | str]:
    """The runtimes that are asked for; a text for each that cannot be installed.

    Args:
        named: Releases of ONNX Runtime.
        others: Other runtimes, as ``--verify-with`` takes them.
        providers: Full names of execution providers on which the others run.
    """
    for release in named:
        python, why = versions.runtime_environment(
            release, lambda command: subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        )
        yield f"{release}: skipped ({why})" if python is None else runtimes.find(python)
    for other in others:
        yield runtimes.find(other, providers=providers)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzzing.releases", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--releases", default="1.17,1.20,1.23,1.27,newest", help="e.g. 1.20,newest")
    parser.add_argument("--runtime", action="append", default=[], help="another runtime, as --verify-with takes it")
    parser.add_argument("--provider", default="", help="the execution provider on which that runs, e.g. qnn")
    parser.add_argument("--passes", default="", help="passes whose examples run, A,B; all if it is left out")
    parser.add_argument("--zoo", action="store_true", help="the models of the zoo instead")
    parser.add_argument("--folder", type=Path, help="the .onnx files of a folder instead")
    parser.add_argument(
        "--smoke", action="store_true", help="a part: a few passes, two releases on which some of their forms are wrong"
    )
    parser.add_argument("--target", help="what results are for, instead of the runtime's own target, e.g. onnx")
    parser.add_argument("--models", default="", help="models of the zoo or of the folder, A,B; all if left out")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="measure each result that is right in turns with its original"
    )
    given = parser.parse_args()
    passes = SMOKE if given.smoke else [name for name in given.passes.split(",") if name] or names()
    chosen = [name for name in given.models.split(",") if name] or zoo.names()
    asked = ["1.20", "1.24"] if given.smoke else [name for name in given.releases.split(",") if name]

    def models() -> Iterator[tuple[str, Example]]:
        if given.folder:
            return (found for found in of_folder(given.folder) if not given.models or found[0] in chosen)
        return of_zoo(chosen) if given.zoo else of_passes(passes)

    findings = ran = 0
    for runtime in environments(asked, given.runtime, full_names(given.provider)):
        if isinstance(runtime, str):
            print(runtime, flush=True)
            continue
        ran += 1
        findings += _reported(runtime, models(), given.seconds, given.target)
    return 1 if findings or not ran else 0


def _reported(
    runtime: Runtime, models: Iterable[tuple[str, Example]], seconds: float, target: str | None = None
) -> int:
    """Examine models on a runtime and print what is found; how many results are wrong."""
    right = wrong = 0
    ratios: dict[str, float] = {}

    def measure(name: str, case: Case) -> None:
        with contextlib.suppress(WorkerError):  # it runs without the runtime's optimizations only, or not the original
            ratios[name] = turns.ratio(runtime, case.original, case.result, case.inputs, seconds)
            print(f"{runtime.name}: {name}: {ratios[name]:.3f}", flush=True)

    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        Runner(Path(one), runtime) as runner,
        Runner(Path(other)) as here,
    ):
        for found in examine(runtime, models, runner, here, measure if seconds else None, target):
            right += found is None
            if found is not None:
                wrong += 1
                print(found, flush=True)
    print(f"{runtime.name}: {right} results are right", flush=True)
    if ratios:
        print(turns.told(runtime.name, ratios), flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())

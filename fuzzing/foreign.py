"""Models that others wrote: onnx's own test cases and files, ONNX Runtime's test models, and whatever is given.

Every model is optimized at every level without verification, and must end as well as it began: ONNX Runtime and
onnx's checker take the result where they take the original, the interface is the same, and so are the numbers, under
ONNX Runtime without optimization or, where that has no kernel, under onnx's reference evaluator. A model that ONNX
Runtime loads is never refused.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from fuzzing.campaign import Tally, campaign
from fuzzing.generator import Case
from fuzzing.oracle import Failure, Oracle, Rejected, Way, optimized, session
from fuzzing.writer import Array
from ortopt.errors import OrtoptError
from ortopt.serialization.load import load
from ortopt.system.child_processes import take_streams
from ortopt.verification.comparison import Comparison
from ortopt.verification.draws import initial_draws
from ortopt.verification.inputs import Interface
from ortopt.verification.randomness import random_outputs
from ortopt.verification.tolerances import tolerances

WAYS: Final = (Way(0), Way(1, "onnx"), Way(1), Way(2), Way(3, "onnx"), Way(3), Way(4))

_ROOT: Final = Path(__file__).parents[1]
_ARCHIVES: Final = (".zip", ".whl", ".tar.gz", ".tgz", ".tar")
_DRAWS: Final = 8
_MAX_BYTES: Final = 200_000_000


@dataclass(frozen=True)
class Foreign:
    """A model of others.

    Attributes:
        label: Where it comes from.
        read: Gives its bytes.
        feeds: Inputs that come with it, by name.
        folder: Where its external data are, if it is a file.
    """

    label: str
    read: Callable[[], bytes]
    feeds: Callable[[], list[dict[str, Array]]]
    folder: Path | None = None


def collection(paths: Sequence[Path] = ()) -> list[Foreign]:
    """All models, in an order that is the same each time.

    Args:
        paths: Further folders, archives and models.
    """
    found = [*_cases(), *_files(Path(onnx.__file__).parent), *_files(_ROOT / "tests" / "data" / "onnxruntime")]
    for path in paths:
        found += _files(path)
    return found


def _cases() -> Iterator[Foreign]:
    """Onnx's test cases that are code: one or more for each op."""
    from onnx.backend.test.case import model as models
    from onnx.backend.test.case import node as nodes

    with warnings.catch_warnings(action="ignore"):
        cases = [*nodes.collect_testcases(None), *models.collect_testcases()]
    for case in cases:
        if case.model is not None:
            yield Foreign(
                f"onnx {case.name}",
                case.model.SerializeToString,
                functools.partial(_given, case.model, [given for given, _ in case.data_sets or ()]),
            )


def _files(path: Path) -> Iterator[Foreign]:
    if path.is_dir():
        for inner in sorted(path.rglob("*")):
            if inner.suffix == ".onnx" or (inner.name.endswith(_ARCHIVES) and inner.is_file()):
                yield from _files(inner)
    elif path.suffix == ".onnx":
        yield Foreign(str(path), path.read_bytes, functools.partial(_beside, path), path.parent)
    elif path.name.endswith(_ARCHIVES):
        for name, read in _members(path):
            yield Foreign(f"{path.name}:{name}", read, list)


def _members(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The models in an archive."""
    if path.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(path) as archive:
            names = [one.filename for one in archive.infolist() if one.file_size <= _MAX_BYTES]
        for name in sorted(names):
            if name.endswith(".onnx"):
                yield name, functools.partial(_from_zip, path, name)
    else:
        with tarfile.open(path) as archive:
            names = [one.name for one in archive if one.isfile() and one.size <= _MAX_BYTES]
        for name in sorted(names):
            if name.endswith(".onnx"):
                yield name, functools.partial(_from_tar, path, name)


def _from_zip(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


def _from_tar(path: Path, name: str) -> bytes:
    with tarfile.open(path) as archive:
        member = archive.extractfile(name)
        return b"" if member is None else member.read()


def _given(model: ModelProto, sets: Sequence[Sequence[Any]]) -> list[dict[str, Array]]:
    """The inputs of a test case, by name; those that are no arrays or lists of arrays are left to ONNX Runtime."""
    names = [value.name for value in model.graph.input]
    return [dict(zip(names, values, strict=False)) for values in sets]


def _beside(path: Path) -> list[dict[str, Array]]:
    """The inputs in the folders that onnx's tests keep beside a model."""
    sets = []
    for folder in sorted(path.parent.glob("test_data_set_*")):
        names = [value.name for value in onnx.load(path, load_external_data=False).graph.input]
        feeds: dict[str, Array] = {}
        for name, file in zip(names, sorted(folder.glob("input_*.pb")), strict=False):
            tensor = onnx.TensorProto()
            try:
                tensor.ParseFromString(file.read_bytes())
                feeds[name] = numpy_helper.to_array(tensor)
            except Exception:  # a sequence or an optional: other inputs are drawn
                break
        else:
            sets.append(feeds)
    return sets


def _drawn(model: bytes) -> list[dict[str, Array]]:
    """Inputs as verification draws them."""
    try:
        interface = Interface(load(model))
        ways = [how for how, _ in zip(initial_draws(), range(_DRAWS), strict=False)]
        return [dict(interface.draw(seed=seed, how=how)) for seed, how in enumerate(ways)]
    except Exception:  # what cannot be drawn is looked at without numbers
        return []


def examine(foreign: Foreign, report: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Optimize a model in every way.

    Args:
        foreign: The model.
        report: Told what is about to be done, so that a crash can be placed.

    Returns:
        What is to be counted.
    """
    report("draw")
    original = foreign.read()
    model = ModelProto()
    try:
        model.ParseFromString(original)
    except Exception as error:
        return {"rejected": f"no model: {error}"}
    if foreign.folder is not None:
        onnx.load_external_data_for_model(model, str(foreign.folder))
        original = model.SerializeToString()
    for feeds in [*foreign.feeds(), *_drawn(original)]:
        try:
            oracle = Oracle(Case(model, [feeds], label=foreign.label), report)
        except Rejected:
            continue
        found = next((failure for way in WAYS if (failure := oracle.check(way, again=way.level == 3))), None)
        rewrites, noisy = oracle.rewrites, oracle.noisy
        break
    else:
        found, rewrites, noisy = _without_kernels(foreign, model, original, report), {"not run": 1}, 0
    return {
        "found": [] if found is None else [f"{foreign.label}: {found}"],
        "noisy": noisy,
        "rewrites": rewrites,
    }


def _without_kernels(
    foreign: Foreign, model: ModelProto, original: bytes, report: Callable[[str], None]
) -> Failure | None:
    """What is wrong with the results of a model that ONNX Runtime does not run."""
    report("original")
    loads, checks = _loads(original), _passes_the_checker(original)
    for way in WAYS:
        report(f"optimize {way}")
        try:
            made, _ = optimized(original, way)
        except OrtoptError as error:
            if loads or checks:
                return Failure("raises", way, _line(error))
            return None
        except Exception as error:  # what must never come out is what is looked for
            return Failure("traceback", way, f"{type(error).__name__}: {_line(error)}")
        if loads and not _loads(made):
            return Failure("unloadable", way, "ONNX Runtime loads the original")
        if checks and (way.target == "onnx" or way.level <= 1) and not _passes_the_checker(made):
            return Failure("checker", way, "onnx's checker takes the original")
        report(f"result of {way}")
        if way.level <= 1 and (detail := _other_reference(foreign, model, original, made)):
            return Failure("differs", way, detail)
    return None


def _loads(model: bytes) -> bool:
    try:
        session(model)
    except Exception:
        return False
    return True


def _passes_the_checker(model: bytes) -> bool:
    try:
        onnx.checker.check_model(model)
    except Exception:
        return False
    return True


def _other_reference(foreign: Foreign, model: ModelProto, original: bytes, made: bytes) -> str:
    """How a result differs from the original under onnx's reference evaluator; empty where that cannot run it."""
    from onnx.reference import ReferenceEvaluator

    for feeds in foreign.feeds():
        try:
            with np.errstate(all="ignore"):
                expected = ReferenceEvaluator(model).run(None, feeds)
        except Exception:
            return ""
        try:
            with np.errstate(all="ignore"):
                got = ReferenceEvaluator(onnx.load(io.BytesIO(made))).run(None, feeds)
        except Exception as error:
            return f"the reference evaluator stops: {_line(error)}"
        loaded = load(original)
        comparison = Comparison(tolerances(loaded), random_outputs(loaded))
        for value, one, other in zip(model.graph.output, expected, got, strict=True):
            kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
            row = comparison.of(value.name, f"tensor({kind})", one, other)
            if isinstance(one, np.ndarray) and not row.agrees:
                return f"output {value.name}: {row.detail}"
    return ""


def work(first: int, count: int, paths: Sequence[Path], answers: IO[str]) -> None:
    """Check models and write a JSON line before each step and after each model."""
    models = collection(paths)
    for number in range(first, first + count):

        def say(stage: str, number: int = number) -> None:
            answers.write(json.dumps({"seed": number, "stage": stage}) + "\n")
            answers.flush()

        try:
            with warnings.catch_warnings(action="ignore"):
                done = examine(models[number], say)
        except Exception as error:  # the fuzzer's own fault: said, and no reason to stop
            done = {"broken": f"{models[number].label}: {type(error).__name__}: {_line(error)}"}
        answers.write(json.dumps({"seed": number, **done}) + "\n")
        answers.flush()


def _line(error: object) -> str:
    return " ".join(str(error).split())[:400]


def main() -> int:
    """Run from the command line."""
    if sys.argv[1:2] == ["--worker"]:
        first, count, _, *paths = sys.argv[2:]
        with io.TextIOWrapper(take_streams()[1], "utf-8") as answers:
            work(int(first), int(count), [Path(path) for path in paths], answers)
        return 0
    parser = argparse.ArgumentParser(prog="python -m fuzzing.foreign", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="further models, folders of models, archives with models")
    parser.add_argument("--first", type=int, default=0, help="the number of the first model")
    parser.add_argument("--count", type=int, default=None, help="how many models; all if it is left out")
    given = parser.parse_args()
    total = len(collection(given.paths)) - given.first
    tally: Tally = campaign(
        given.first,
        total if given.count is None else min(given.count, total),
        say=lambda text: print(text, flush=True),
        worker="fuzzing.foreign",
        arguments=[str(path) for path in given.paths],
    )
    print(tally)
    print(f"{tally.rewrites['not run']} of them are looked at without running them: ONNX Runtime has no kernels")
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())

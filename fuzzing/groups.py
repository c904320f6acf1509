"""Random models cut into groups: ``python -m fuzzing.groups --seed N --count M``.

Each is cut in several ways (policies, providers, argument limits, ops that no provider may have), and run as it is
written, by ONNX Runtime and by ortopt.InferenceSession, and grouped on the fly with ops of the caller's on the host.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx.reference.op_run import OpRun

from fuzzing.campaign import Tally, campaign
from fuzzing.generator import Case, generate
from fuzzing.mutations import mutated
from fuzzing.oddities import DOMAIN, add_oddities, with_ops_of_the_callers
from fuzzing.oracle import Failure, Oracle, Rejected, Way, session
from fuzzing.protos import nodes_of
from fuzzing.writer import Unsuitable
from ortopt import InferenceSession
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.system.child_processes import take_streams

_PROVIDERS: Final = (("cpu",), ("cuda", "cpu"), ("cuda", "cpu"), ("dml", "cuda", "cpu"))
_LIMITS: Final = (3, 8, 128)
_IN_THE_REFERENCE: Final = "index can't contain negative values"
"""What numpy says to ``onnx.reference``, whose Pad cuts nothing off; ops that no provider may have are run by it."""


class Same(OpRun):
    """The caller's op: what it is given."""

    op_domain = DOMAIN

    def _run(self, x: Any) -> tuple[Any, ...]:
        return (x.copy() if hasattr(x, "copy") else x,)


@dataclass(frozen=True)
class Cut:
    """One way to cut a model."""

    options: PartitionOptions
    session: tuple[tuple[str, Any], ...]
    parallel: bool

    def __str__(self) -> str:
        one = self.options
        more = ", ".join(f"{name}={value}" for name, value in self.session)
        return (
            f"{one.policy} {','.join(one.providers)} limit {one.argument_limit} deny {','.join(one.deny) or '-'}"
            f"{'' if one.horizontal else ' vertical'}{'' if one.preparation else ' still'}"
            f"{' parallel' if self.parallel else ''}{f' ({more})' if more else ''}"
        )


def cuts(model: onnx.ModelProto, draw: random.Random, count: int = 3) -> Iterator[Cut]:
    """Ways to cut a model."""
    ops = sorted({f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes_of(model)})
    for _ in range(count):
        denied = draw.sample(ops, min(len(ops), draw.choice((0, 1, 1, 2, 3, 6))))
        providers = draw.choice(_PROVIDERS)
        if len(providers) > 1:
            denied += [f"{op}@cuda" for op in draw.sample(ops, len(ops) // 2)]
        extra: dict[str, Any] = draw.choice(
            (
                {},
                {"run_type": "debug"},
                {"specialize_after": 1},
                {"specialize_after": 1, "specialize_constants": True},
                {"run_type": "reference"},
                {"trace": True},
            )
        )
        options = PartitionOptions(
            providers=providers,
            policy=draw.choice(("cost", "literal")),
            argument_limit=draw.choice(_LIMITS),
            horizontal=draw.random() < 0.7,
            preparation=draw.random() < 0.7,
            deny=tuple(denied),
        )
        yield Cut(options, tuple(extra.items()), draw.random() < 0.3)


def case_of(seed: int) -> tuple[Case, list[str]]:
    """The case of a seed, with oddities."""
    case = mutated(seed) if seed % 4 == 3 else generate(seed)
    draw = random.Random(f"odd {seed}")
    names: list[str] = []
    for _ in range(4):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        names = add_oddities(model, draw)
        try:
            session(model.SerializeToString())
        except Exception:
            continue
        return replace(case, model=model), names
    return case, []


class Grouped:
    """What is right for a case, and whether what is cut is."""

    def __init__(self, case: Case, report: Callable[[str], None] = lambda _: None) -> None:
        self.oracle = Oracle(case, report)
        self._report = report

    def check(self, cut: Cut) -> Failure | None:
        """Cut the model, run it in groups, compare; None if all is well."""
        way = Way(4, "ort", {"cut": str(cut)})
        steps = (self._written, self._on_the_fly)
        for step in steps:
            failure = step(cut, way)
            if failure is not None:
                return failure
        return None

    def _written(self, cut: Cut, way: Way) -> Failure | None:
        self._report(f"group {cut}")
        try:
            model = load(self.oracle.bytes)
            group(model, cut.options)
            made = to_bytes(model)
        except Exception as error:
            return Failure("traceback", way, f"{type(error).__name__}: {_line(error)}")
        self._report(f"run grouped {cut}")
        try:
            plain = session(made)
        except Exception as error:
            return Failure("unloadable", way, _line(error))
        exact = not self.oracle.coarse and not cut.options.preparation
        failure = self._compared(plain.run, way, "ONNX Runtime", exact)
        return failure or self._in_groups(made, cut, way, (), exact)

    def _on_the_fly(self, cut: Cut, way: Way) -> Failure | None:
        model = with_ops_of_the_callers(self.oracle.case.model)
        if model is None:
            return None
        self._report(f"on the fly {cut}")
        exact = not self.oracle.coarse
        return self._in_groups(model.SerializeToString(), cut, way, (Same,), exact)

    def _in_groups(self, made: bytes, cut: Cut, way: Way, host_ops: tuple[type, ...], exact: bool) -> Failure | None:
        self._report(f"in groups {cut}")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if cut.parallel:
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = 2
        more = dict(cut.session)
        specializes = "specialize_after" in more
        name = f"InferenceSession{' with host ops' if host_ops else ''}"
        if more.get("run_type") == "debug":
            # What the host computes is rounded otherwise than what it is compared with.
            more.update({} if not host_ops else {"rtol": 1e-2, "atol": 1e-2})
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                runs = InferenceSession(made, options, ["cpu"], host_ops=host_ops, dump_folder=folder, **more)
            except Exception as error:
                return Failure("opens not", way, f"{name}: {type(error).__name__}: {_line(error)}")
            with runs:
                for _ in range(3 if specializes else 1):
                    failure = self._compared(runs.run, way, name, exact and not specializes)
                    if failure is not None:
                        return failure
                if [(one.name, one.type) for one in runs.get_outputs()] != self.oracle.outputs:
                    return Failure("interface", way, f"{name}: other outputs")
        return None

    def _compared(self, run: Callable[..., Any], way: Way, name: str, exact: bool) -> Failure | None:
        quiet = onnxruntime.RunOptions()
        quiet.log_severity_level = 4
        for number, (feeds, expected, special) in enumerate(self.oracle.sets):
            if special and not exact:
                continue
            try:
                got = run(None, dict(feeds), quiet)
            except Exception as error:
                if _IN_THE_REFERENCE in str(error):
                    continue
                return Failure("stops", way, f"{name}, input set {number}: {type(error).__name__}: {_line(error)}")
            detail = self.oracle.difference(feeds, expected, _as_empty(got, expected), exact)
            if detail:
                return Failure("differs", way, f"{name}, input set {number}{' (exact)' if exact else ''}: {detail}")
        return None


def _as_empty(got: list[Any], expected: list[Any]) -> list[Any]:
    """The outputs with what is empty as expected: which sizes a Loop without iterations gives is a matter of taste."""
    return [other if _is_empty_alike(one, other) else one for one, other in zip(got, expected, strict=True)]


def _is_empty_alike(one: Any, other: Any) -> bool:
    if not all(isinstance(array, np.ndarray) and array.size == 0 for array in (one, other)):
        return False
    if one.dtype != other.dtype or one.ndim != other.ndim:
        return False
    return all(its in (mine, 0) for mine, its in zip(one.shape, other.shape, strict=True))


def examine(seed: int, out: Path | None, report: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Check one seed; a failure is kept as a file."""
    report("draw")
    try:
        case, odd = case_of(seed)
        grouped = Grouped(case, report)
    except (Rejected, Unsuitable) as error:
        return {"rejected": str(error)}
    found = []
    for cut in cuts(case.model, random.Random(f"cut {seed}")):
        failure = grouped.check(cut)
        if failure is not None:
            found.append(failure)
            break
    if found and out is not None:
        folder = out / f"{found[0].kind.replace(' ', '-')}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(case.model, folder / "model.onnx")
        (folder / "finding.txt").write_text(f"{case.label}\n{odd}\n{found[0]}\n", encoding="utf-8")
    return {"found": [str(one) for one in found], "noisy": grouped.oracle.noisy, "rewrites": dict.fromkeys(odd, 1)}


def work(first: int, count: int, out: Path | None, answers: IO[str]) -> None:
    """Check seeds and write a JSON line before each step and after each seed."""
    for seed in range(first, first + count):

        def say(stage: str, seed: int = seed) -> None:
            answers.write(json.dumps({"seed": seed, "stage": stage}) + "\n")
            answers.flush()

        try:
            done = examine(seed, out, say)
        except Exception as error:  # the fuzzer's own fault: said, and no reason to stop
            done = {"broken": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({"seed": seed, **done}) + "\n")
        answers.flush()


def _line(error: object) -> str:
    return " ".join(str(error).split())[:500]


def main() -> int:
    """Run from the command line."""
    if sys.argv[1:2] == ["--worker"]:
        first, count, out = sys.argv[2:5]
        with io.TextIOWrapper(take_streams()[1], "utf-8") as answers:
            work(int(first), int(count), Path(out) if out else None, answers)
        return 0
    parser = argparse.ArgumentParser(prog="python -m fuzzing.groups", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many models")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this long")
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"), help="the folder for findings")
    given = parser.parse_args()
    tally: Tally = campaign(
        given.seed,
        given.count,
        seconds=given.seconds,
        out=given.out,
        say=lambda text: print(text, flush=True),
        worker="fuzzing.groups",
    )
    print(tally)
    for name, models in tally.rewrites.most_common():
        print(f"{models:8} models with {name}")
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())

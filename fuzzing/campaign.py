"""A long run: many seeds in a process of its own, which may crash without ending the run; findings kept as files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import onnx

from fuzzing import mutations
from fuzzing.generator import Case, generate
from fuzzing.minimize import minimize
from fuzzing.oracle import Failure, Oracle, Rejected, Way, failures
from fuzzing.writer import Array, Unsuitable
from ortopt.system.child_processes import skip_to_answers

PATIENCE: Final = 120.0
"""Seconds without a word after which a worker hangs."""

_MINIMIZE_SECONDS: Final = 40.0


@dataclass
class Tally:
    """What a run has done.

    Attributes:
        models: Models that ONNX Runtime runs and that were optimized in every way.
        rejected: Drawn models that ONNX Runtime does not run.
        noisy: Models too ill-conditioned to compare where the order of rounding changed.
        crashes: How often a worker ended by itself or hung, by what it was doing.
        found: Failures, as (seed, text).
        rewrites: Models that a transformer changed, by its name.
        seconds: How long it took.
    """

    models: int = 0
    rejected: int = 0
    noisy: int = 0
    crashes: Counter[str] = field(default_factory=Counter)
    found: list[tuple[int, str]] = field(default_factory=list)
    rewrites: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        crashes = ", ".join(f"{what} {count}" for what, count in self.crashes.items()) or "none"
        return (
            f"{self.models} models in {self.seconds:.0f} s, {self.rejected} rejected by ONNX Runtime, {self.noisy} too"
            f" ill-conditioned in part, {len(self.found)} failures, {len(self.rewrites)} transformers at work;"
            f" crashes: {crashes}"
        )


def case_of(seed: int) -> Case:
    """The case of a seed: three of four are drawn, the fourth is a piece of a zoo model, changed."""
    return mutations.mutated(seed) if seed % 4 == 3 else generate(seed)


def examine(seed: int, out: Path | None, report: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Check one seed; a failure is minimised and saved.

    Args:
        seed: The seed.
        out: The folder for findings; None keeps nothing.
        report: Told what is about to be done.

    Returns:
        What is to be counted.
    """
    report("draw")
    try:
        case = case_of(seed)
    except (Rejected, Unsuitable) as error:
        return {"rejected": str(error)}
    return examine_case(case, seed, out, report)


def examine_case(
    case: Case, seed: int, out: Path | None, report: Callable[[str], None], chosen: Sequence[Way] = ()
) -> dict[str, Any]:
    """Check one model; a failure is minimised and saved.

    Args:
        case: The model and its inputs.
        seed: What it was drawn from.
        out: The folder for findings; None keeps nothing.
        report: Told what is about to be done.
        chosen: How it is optimized; by the seed if empty.

    Returns:
        What is to be counted.
    """
    try:
        oracle, found = failures(case, seed, report, chosen)
    except Rejected as error:
        return {"rejected": str(error)}
    if found and out is not None:
        report("minimize")
        _keep(out, seed, case, found[0], oracle)
    return {"found": [str(one) for one in found], "noisy": oracle.noisy, "rewrites": oracle.rewrites}


def fails_alike(failure: Failure) -> Callable[[onnx.ModelProto, dict[str, Array]], bool]:
    """Whether a model fails as another one did, within some time."""
    end = time.monotonic() + _MINIMIZE_SECONDS

    def fails(model: onnx.ModelProto, feeds: dict[str, Array]) -> bool:
        if time.monotonic() > end:
            return False
        try:
            oracle = Oracle(Case(model, [feeds]))
        except Exception:
            return False
        again = oracle.check(failure.way, again=failure.kind == "again")
        if again is None or again.kind != failure.kind:
            return False
        return failure.kind not in ("traceback", "raises") or again.detail.split(":")[0] == failure.detail.split(":")[0]

    return fails


def _keep(out: Path, seed: int, case: Case, failure: Failure, oracle: Oracle) -> None:
    folder = out / f"{failure.kind}-{failure.culprit or 'unknown'}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(case.model, folder / "model.onnx")
    lines = [f"{case.label}", str(failure), ""]
    fails = fails_alike(failure)
    feeds = next((one for one, _, _ in oracle.sets if fails(case.model, one)), None)
    if feeds is None:
        lines.append("it does not fail alone with any one input set")
    else:
        small, given = minimize(case.model, feeds, fails)
        onnx.save(small, folder / "small.onnx")
        np.savez(folder / "inputs.npz", **given)  # type: ignore[arg-type]
        lines += [onnx.printer.to_text(small), "", *(f"{name} = {array!r}" for name, array in given.items())]
    (folder / "finding.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def work(
    first: int,
    count: int,
    stride: int,
    out: Path | None,
    answers: IO[str],
    check: Callable[[int, Path | None, Callable[[str], None]], dict[str, Any]] = examine,
) -> None:
    """Check seeds and write a JSON line before each step and after each seed.

    Args:
        first: The first seed.
        count: How many.
        stride: What lies between two of them.
        out: The folder for findings; None keeps nothing.
        answers: Where to write.
        check: Checks one seed, as `examine` does.
    """
    for seed in range(first, first + count * stride, stride):

        def say(stage: str, seed: int = seed) -> None:
            answers.write(json.dumps({"seed": seed, "stage": stage}) + "\n")
            answers.flush()

        try:
            done = check(seed, out, say)
        except Exception as error:  # the fuzzer's own fault: said, and no reason to stop
            done = {"broken": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({"seed": seed, **done}) + "\n")
        answers.flush()


def campaign(
    first: int,
    count: int,
    *,
    seconds: float | None = None,
    out: Path | None = None,
    say: Callable[[str], None] = print,
    worker: str = "fuzzing",
    arguments: Sequence[str] = (),
    patience: float = PATIENCE,
) -> Tally:
    """Check seeds in a worker that is started again whenever it ends.

    Args:
        first: The first seed.
        count: How many.
        seconds: Stop after this long.
        out: The folder for findings.
        say: Told of each failure.
        worker: The module that checks seeds.
        arguments: Further arguments of its command line.
        patience: Seconds without a word after which a worker hangs.

    Returns:
        What was done.
    """
    tally = Tally()
    start = time.monotonic()
    seed = first
    while seed < first + count and (seconds is None or time.monotonic() - start < seconds):
        left = None if seconds is None else seconds - (time.monotonic() - start)
        command = _Command(worker, out, tuple(arguments), patience)
        seed = _one_worker(command, seed, first + count - seed, left, tally, say)
    tally.seconds = time.monotonic() - start
    return tally


@dataclass(frozen=True)
class _Command:
    """How a worker is started."""

    worker: str
    out: Path | None
    arguments: tuple[str, ...]
    patience: float

    def of(self, first: int, count: int, *, keeps: bool = True) -> list[str]:
        out = str(self.out or "") if keeps else ""
        return [sys.executable, "-m", self.worker, "--worker", str(first), str(count), out, *self.arguments]


def _one_worker(
    command: _Command,
    first: int,
    count: int,
    seconds: float | None,
    tally: Tally,
    say: Callable[[str], None],
) -> int:
    """Let a worker check seeds; the seed to go on with."""
    process = subprocess.Popen(
        command.of(first, count),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    end = None if seconds is None else time.monotonic() + seconds
    seed, stage = first, "start"
    try:
        for line in _lines(process, command.patience):
            answer: dict[str, Any] = json.loads(line)
            seed = int(answer["seed"])
            if "stage" in answer:
                stage = answer["stage"]
                continue
            _count(answer, tally, say)
            seed, stage = seed + 1, "start"
            if end is not None and time.monotonic() > end:
                return seed
    finally:
        process.kill()
        process.communicate()  # closes its pipe too
    if seed < first + count:  # it died over this seed
        what = "the original" if stage in ("original", "draw") else stage.split(" ")[0]
        tally.crashes[what] += 1
        if what not in ("the original", "minimize"):
            alone = "but not alone" if _ends_well(command, seed) else "alone too"
            text = f"seed {seed}: the process ended with {process.returncode} at: {stage}, {alone}"
            tally.found.append((seed, text))
            say(text)
        return seed + 1
    return seed


def _ends_well(command: _Command, seed: int) -> bool:
    """Whether a worker that has nothing else to do gets to the end of a seed."""
    try:
        subprocess.run(command.of(seed, 1, keeps=False), capture_output=True, check=True, timeout=command.patience)
    except subprocess.SubprocessError:
        return False
    return True


def _lines(process: subprocess.Popen[bytes], patience: float) -> Iterator[bytes]:
    """What a worker says; it is ended when it says nothing for long."""
    assert process.stdout is not None
    greeted = False
    while True:
        timer = threading.Timer(patience, process.kill)
        timer.daemon = True
        timer.start()
        greeted = greeted or skip_to_answers(process.stdout)
        line = process.stdout.readline()
        timer.cancel()
        if not line:
            return
        yield line


def _count(answer: dict[str, Any], tally: Tally, say: Callable[[str], None]) -> None:
    if "rejected" in answer:
        tally.rejected += 1
        return
    if "broken" in answer:
        tally.found.append((answer["seed"], answer["broken"]))
        say(f"seed {answer['seed']}: the fuzzer itself: {answer['broken']}")
        return
    tally.models += 1
    tally.noisy += answer["noisy"] > 0
    tally.rewrites.update(answer["rewrites"].keys())
    for text in answer["found"]:
        tally.found.append((answer["seed"], text))
        say(f"seed {answer['seed']}: {text}")

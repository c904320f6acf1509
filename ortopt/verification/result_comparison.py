"""A result against the outputs of its original: whether it runs, and what its outputs differ by.

A form such as a convolution over blocks of pixels multiplies by zeros what the original does not read, and 0 · ∞ is
NaN. So where the original holds a NaN or an infinity, such a result may hold one at the places around it, too. That is
all that it may do: where both are finite they are compared as always, a finite number never stands for one that is not,
and where nothing in the original's inputs or in an output is NaN or infinite, nothing in that output of the result is.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Protocol

import numpy as np

from ortopt.evaluation.raw_tensors import Place
from ortopt.verification import noise
from ortopt.verification.comparison import OutputRow, is_float, regardless_of_signs, worst_of
from ortopt.verification.doubtful_outputs import (
    TIMES_THE_NOISE,
    TIMES_THE_STEPS,
    accept_explained_infinities,
    decide_by_distance,
    decide_by_matches,
    decide_by_noise,
    decide_by_steps,
    zeros_cancel_out,
)
from ortopt.verification.perturbed_outputs import PerturbedCopies
from ortopt.verification.process import PATIENCE, Deadline, Worker, WorkerError
from ortopt.verification.reference_outputs import ReferenceOutputs
from ortopt.verification.runner import ModelRunner, Source
from ortopt.verification.verdict import Verification, verdict_of
from ortopt.verification.worker import restore


def accept_spreading(expected: Any, got: Any, type_: str, *, special: bool) -> tuple[Any, int]:
    """What was expected, with what was got wherever that is NaN or infinite and may be.

    Args:
        expected: What the original gave.
        got: What the result gave.
        type_: The output's type, in ONNX's spelling.
        special: Whether the inputs hold NaN or infinities.

    Returns:
        What to compare with; and at how many places the original is finite, where the result is not.
    """
    if not is_float(expected, type_) or not is_float(got, type_) or expected.shape != got.shape:
        return expected, 0
    finite = np.isfinite(expected)
    if not special and finite.all():
        return expected, 0
    lost = ~np.isfinite(got)
    return np.where(lost, got, expected).astype(expected.dtype), int((lost & finite).sum())


_TIMES_THE_ORIGINAL: Final = 20.0  # that the result may take longer
_QUANTIZED_BYTES: Final = 2  # integers of up to 16 bits come from quantizers, wider ones may be indices
_MEASURES: Final = (operator.attrgetter("worst"), operator.attrgetter("mean"), operator.attrgetter("local"))


class Session(Protocol):
    """A session of a result; what it is asked may raise `WorkerError`."""

    @property
    def names(self) -> list[str]:
        """The outputs' names."""

    @property
    def types(self) -> list[str]:
        """The outputs' types, in ONNX's spelling."""

    def run(self, source: Place, target: Place) -> list[Any]:
        """Run the inputs in one place; the outputs are kept in the other."""


class Behind(Protocol):
    """What a worker is asked to run behind a result."""

    def follow(self, worker: Worker) -> None:
        """Ask for it."""

    def take(self, worker: Worker) -> None:
        """Wait for it."""


def load_failure(runner: ModelRunner, result: Source) -> Verification | None:
    """The verdict on a result of which ONNX Runtime makes no session; None if it makes one."""
    try:
        with runner.worker(result, "loaded") as worker:
            worker.wait()
    except WorkerError as error:
        if error.late:
            return Verification("impossible", f"the result: {error}", attempts=runner.attempts)
        reason = f"the original runs, the result does not: {error}"
        return Verification("differs", reason, attempts=runner.attempts)
    return None


def deadline_of(worker: Worker, reference: ReferenceOutputs) -> Deadline:
    """When a result that a worker runs is ended, unless the caller has said it."""
    return Deadline(worker.patience + _TIMES_THE_ORIGINAL * reference.reference_seconds)


@dataclass(eq=False)
class ResultComparison:
    """Runs one result on the input sets on which the original has run, and compares.

    Attributes:
        runner: Runs it.
        reference: The outputs of the original.
        copies: Copies of the original, for outputs that are neither clearly right nor clearly wrong.
        prefix: Of the names of files: for a second original of the same runner.
        spreading: Whether NaN and infinities may have spread (`ortopt.verification.result_comparison`).
        differing: The input sets on which the result differs or does not run.
    """

    runner: ModelRunner
    reference: ReferenceOutputs
    copies: PerturbedCopies
    prefix: str = ""
    _: KW_ONLY
    spreading: bool = False

    def __post_init__(self) -> None:
        self._spread: dict[str, int] = {}
        self.differing = list(self.reference.sets)
        self._hidden: set[str] = set()
        self._label = ""

    def verdict(self, result: Source, *, optimize: bool = False, behind: Behind | None = None) -> Verification:
        """The verdict on a result.

        Args:
            result: A path or a model.
            optimize: Whether ONNX Runtime optimizes it.
            behind: What runs behind it, of use where it agrees.
        """
        with self.runner.worker(result, self.label, optimize=optimize) as worker:
            if self.runner.deadline is None:
                worker.deadline = deadline_of(worker, self.reference)
            sets = self.reference.sets.items()
            worker.queue((input_set.source, self._place(number)) for number, input_set in sets)
            if behind is not None:
                behind.follow(worker)
            verdict = self.verdict_on(worker)
            if behind is not None and verdict.status in ("verified", "not shown"):
                behind.take(worker)
            return verdict

    def _place(self, number: int) -> Place:
        return self.runner.place(f"{self.label}{number}")

    @property
    def label(self) -> str:
        """What files of a result are called."""
        return f"{self.prefix}result"

    def verdict_on(self, session: Session) -> Verification:
        """The verdict on a result that has been loaded, or will be.

        Args:
            session: Runs it.
        """
        reference, attempts = self.reference, self.runner.attempts
        allowed = _TIMES_THE_ORIGINAL * reference.reference_seconds
        try:
            if tuple(session.names) != reference.names:
                reason = f"the outputs are {session.names} instead of {list(reference.names)}"
                return Verification("differs", reason)
            rows = self._compare_sets(session)
        except WorkerError as error:
            where = f" where {self._label}" if self._label else ""
            if error.late and (self.runner.deadline is not None or allowed > PATIENCE):
                return Verification("impossible", f"the result: {error}", attempts=attempts)
            if error.late:
                reason = f"the original ran in {reference.reference_seconds:.1f} s, the result: {error}"
                return Verification("differs", reason, attempts=attempts)
            reason = f"the original runs{where}, the result does not: {error}"
            return Verification("differs", reason, attempts=attempts)
        return verdict_of(
            rows,
            random=reference.comparison.random,
            hidden=self._hidden,
            input_sets=len(reference.sets),
            attempts=attempts,
            spread=sum(self._spread.values()),
        )

    def _compare_sets(self, session: Session) -> list[OutputRow]:
        """A row for each output, of the input set on which it differs most."""
        reference = self.reference
        compared: dict[str, list[OutputRow]] = {name: [] for name in session.names if name in reference.wanted}
        differing: list[int] = []
        shown: set[str] = set()
        hidden: set[str] = set()  # NaN everywhere
        for number, input_set in reference.sets.items():
            self.differing, self._label = [*differing, number], input_set.label  # in case that it does not run
            target = self._place(number)
            outputs = session.run(input_set.source, target)
            wanted = reference.wanted - reference.quantized if input_set.special else reference.wanted
            for i, (name, output) in enumerate(zip(session.names, outputs, strict=True)):
                if name in wanted:
                    expected, got = restore(input_set.target, input_set.rows[i]), restore(target, output)
                    expected = self._with_spread(number, i, expected, got)
                    row = self._compare(number, i, expected, got)
                    compared[name].append(self._decide(row, number, i, expected, got) if row.doubtful else row)
                    (shown if row.shown and np.size(expected) else hidden if not row.shown else set()).add(name)
            if any(not rows[-1].agrees for name, rows in compared.items() if name in wanted):
                differing.append(number)
        self.differing = differing
        self._hidden = hidden - shown
        self._compare_types(session, compared)
        return [worst_of(rows, name) for name, rows in compared.items()]

    def _compare_types(self, session: Session, compared: Mapping[str, list[OutputRow]]) -> None:
        reference = self.reference
        for name, expected, got in zip(session.names, reference.types, session.types, strict=True):
            if expected != got and name in reference.wanted:
                detail = f"the type is {got} instead of {expected}"
                compared[name].append(OutputRow(name, math.inf, 0.0, False, detail))
                self.differing = list(reference.sets)

    def _with_spread(self, number: int, i: int, expected: Any, got: Any) -> Any:
        """What was expected; NaN and infinities that have spread, where they may, are as good."""
        if not self.spreading:
            return expected
        reference = self.reference
        name, type_ = reference.names[i], reference.types[i]
        expected, spread = accept_spreading(expected, got, type_, special=not reference.sets[number].finite)
        self._spread[name] = max(spread, self._spread.get(name, 0))
        return expected

    def _compare(self, number: int, i: int, expected: Any, got: Any) -> OutputRow:
        reference, input_set = self.reference, self.reference.sets[number]
        name, type_ = reference.names[i], reference.types[i]
        row = reference.comparison.of(name, type_, expected, got, extreme=input_set.extreme)
        return row if input_set.signs else regardless_of_signs(row, reference.comparison.caps.get(name))

    def _decide(self, row: OutputRow, number: int, i: int, expected: Any, got: Any) -> OutputRow:
        """A row that is neither clearly right nor clearly wrong, by what copies of the original give."""
        compare, type_ = self.reference.comparison.of, self.reference.types[i]
        extreme = self.reference.sets[number].extreme
        if math.isinf(row.worst) and not (extreme and is_float(expected, type_)):
            if expected.dtype.itemsize <= _QUANTIZED_BYTES and row.name in self.reference.comparison.caps:
                decided = decide_by_steps(row, expected, got, self.copies.stepped(number, i))
                if decided.agrees:
                    return decided
            others = self.copies.perturbed(number, i)
            decided = decide_by_matches(row, expected, got, others)
            return decided if decided.agrees or not extreme else decide_by_distance(row, expected, got, others)
        if math.isinf(row.worst):
            others = [other for _, other in self.copies.rounded(number, i, expected, type_)]
            accepted = accept_explained_infinities(expected, got, others)
            row = compare(row.name, type_, accepted, got, extreme=True)
            if math.isinf(row.worst) or not row.doubtful:
                return dataclasses.replace(row, doubtful=False)
        spread: dict[str, OutputRow] = {}
        others = []
        zeros = 0
        for kind, other in self.copies.rounded(number, i, expected, type_):
            if kind != "optimized":
                others.append(other)
            compared = compare(row.name, type_, expected, other)
            if math.isfinite(compared.worst):
                zeros = max(zeros, compared.zeros)
                spread[kind] = compared
            if row.zeros and zeros_cancel_out(expected, got, others):
                zeros = max(zeros, row.zeros)
            decided = self._by_spread(row, spread, zeros, extreme=extreme)
            if decided.agrees and not decided.doubtful:  # another copy could only allow more
                return decided
        return self._by_spread(row, spread, zeros, extreme=extreme)

    def _by_spread(self, row: OutputRow, spread: Mapping[str, OutputRow], zeros: int, *, extreme: bool) -> OutputRow:
        """A doubtful row by how copies of the original compare with it."""
        if not spread:
            return row
        largest, mean, local = _noise(spread)
        times = TIMES_THE_STEPS if any(kind.startswith("stepped") for kind in spread) else TIMES_THE_NOISE
        cap = self.reference.comparison.caps.get(row.name)
        return decide_by_noise(row, largest, mean, zeros, local=local, extreme=extreme, times=times, cap=cap)


def _noise(spread: Mapping[str, OutputRow]) -> tuple[float, float, float]:
    """The greatest errors of copies of the original, and the greatest of their means, and relative to surroundings."""
    own = [copy for kind, copy in spread.items() if kind != "optimized"]
    largest = max((copy.worst for copy in own), default=0.0)
    optimized = spread.get("optimized")
    if optimized is not None and (not own or optimized.worst <= noise.TRUSTED_TIMES * largest):
        own.append(optimized)
    worst, mean, local = (max((get(copy) for copy in own), default=0.0) for get in _MEASURES)
    return worst, mean, local

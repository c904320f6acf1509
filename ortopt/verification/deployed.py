"""Results as people deploy them: loaded with ONNX Runtime's own optimizations, as every session is by default.

These optimizations meet another graph in a result than in its original. Where a kernel or a fusion of theirs is wrong,
or ends the process, only the one may be concerned: a result that agrees without them (`ortopt.verification.verify`)
must agree with them, too. It is loaded and run so behind its session without them, in the same process, which is busy
with it while this one compares; a model that dies there is asked again in a process in which nothing has run before.

What the result gives is right where it agrees with the original as it is: without optimizations it is what the model
means, and the measure is the same. Only where it does not, the original is loaded so, too, once, and kept:

- It fails as well, or gives another answer than without optimizations: then they are wrong by themselves. The verdict
  says so, and does not blame the result.
- It is right, and the result agrees with what it gives now: other kernels round otherwise, and where a number is
  rounded, or one of two is chosen, the original in the same kernels decides. Its noise is measured in these kernels.
- It is right, and the result is not: the result differs.

One ordinary input set is compared, more of them if the original is quick, and all of a thorough verification.

The same is asked of other runtimes that people deploy on (`ortopt.verification.runtimes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ortopt.evaluation.raw_tensors import Place
from ortopt.terminal_text import quoted
from ortopt.verification.input_sets import InputSet
from ortopt.verification.perturbed_outputs import PerturbedCopies
from ortopt.verification.process import Worker, WorkerError
from ortopt.verification.reference_outputs import ReferenceOutputs
from ortopt.verification.result_comparison import ResultComparison, deadline_of
from ortopt.verification.runner import ModelRunner, Source, nbytes
from ortopt.verification.verdict import Verification

PREFIX: Final = "deployed-"
FURTHER_SECONDS: Final = 0.03
"""That the original may take for more than one input set."""


class Deployment(NamedTuple):
    """How models are deployed, in the words of a verdict.

    Attributes:
        with_: Of a result that differs so.
        subject: What breaks an original.
        breaks: What it does to an original that does not run.
        changes: What it does to one that gives something else.
    """

    with_: str
    subject: str
    breaks: str
    changes: str


DEFAULTS: Final = Deployment(
    "with ONNX Runtime's default optimizations",
    "ONNX Runtime's default optimizations",
    "break the original, too",
    "change the original, too",
)


def on(runtime: str) -> Deployment:
    """Deployed on another runtime.

    Args:
        runtime: Its name, with its release.
    """
    return Deployment(f"on {runtime}", runtime, "does not run the original either", "changes the original, too")


class DeployedRun:
    """A model that ONNX Runtime optimizes, run on input sets: behind another (`follow`), or when it is asked.

    It answers as the session would (`ortopt.verification.result_comparison.Session`), an error at its place.

    Args:
        runner: Runs it where it has not been run behind another.
        sources: The model, behind those that are loaded only.
        label: Of the names of files.
        reference: The input sets.
    """

    def __init__(self, runner: ModelRunner, sources: Sequence[Source], label: str, reference: ReferenceOutputs) -> None:
        self._runner = runner
        self._sources = tuple(sources)
        self._label = label
        self._reference = reference
        self._has_run = False
        self._outputs: tuple[list[str], list[str]] | None = None
        self._rows: dict[Place, list[Any]] = {}
        self._error: WorkerError | None = None

    def follow(self, worker: Worker) -> None:
        """Ask a worker for it, behind all that it has been asked for; `take` is due when that has been answered.

        Args:
            worker: Runs another model.
        """
        for source in self._sources:
            runs = self._runs() if source is self._sources[-1] else []
            worker.follow(self._runner.written(source, self._label), nbytes(source), optimize=True, runs=runs)

    def take(self, worker: Worker) -> None:
        """Wait for what `follow` has asked for.

        Args:
            worker: The same.
        """
        self._has_run = True
        try:
            for _ in self._sources[:-1]:
                worker.proceed(self._runner.deadline)
                worker.wait()
            worker.proceed(self._runner.deadline)
            self._collect(worker)
        except WorkerError as error:
            self._error = error

    def again(self) -> DeployedRun:
        """Another run of the same, in a process in which nothing else has run."""
        self._runner.close()
        return DeployedRun(self._runner, self._sources, self._label, self._reference)

    @property
    def has_died(self) -> bool:
        """Whether the model has ended its process."""
        self._run()
        return self._error is not None and self._error.died and not self._error.late

    @property
    def names(self) -> list[str]:
        """The outputs' names."""
        return self._loaded()[0]

    @property
    def types(self) -> list[str]:
        """The outputs' types, in ONNX's spelling."""
        return self._loaded()[1]

    def run(self, source: Place, target: Place) -> list[Any]:
        """What it gave for the inputs in one place, which is kept in the other."""
        self._run()
        if target not in self._rows:
            assert self._error is not None
            raise self._error
        return self._rows[target]

    def sets(self) -> dict[int, InputSet]:
        """The input sets, with what it gave for them."""
        return {
            number: input_set.with_outputs(self._place(number), self.run(input_set.source, self._place(number)))
            for number, input_set in self._reference.sets.items()
        }

    def _loaded(self) -> tuple[list[str], list[str]]:
        self._run()
        if self._outputs is None:
            assert self._error is not None
            raise self._error
        return self._outputs

    def _run(self) -> None:
        if self._has_run:
            return
        self._has_run = True
        try:
            for source in self._sources[:-1]:
                with self._runner.worker(source, f"{self._label}-loaded", optimize=True) as worker:
                    worker.wait()
            with self._runner.worker(self._sources[-1], self._label, optimize=True) as worker:
                worker.queue(self._runs())
                self._collect(worker)
        except WorkerError as error:
            self._error = error

    def _collect(self, worker: Worker) -> None:
        if self._runner.deadline is None:
            worker.deadline = deadline_of(worker, self._reference)
        self._outputs = worker.names, worker.types
        for source, target in self._runs():
            self._rows[target] = worker.run(source, target)
        try:
            worker.release()
        except WorkerError:
            self._rows.clear()  # a process that dies of the end of its session is no use
            raise

    def _runs(self) -> list[tuple[Place, Place]]:
        return [(input_set.source, self._place(number)) for number, input_set in self._reference.sets.items()]

    def _place(self, number: int) -> Place:
        return self._runner.place(f"{self._label}{number}")


class _Original(NamedTuple):
    """What the original does under these optimizations.

    Attributes:
        error: Why it does not run; empty where it does.
        broken: What is wrong about outputs, by their names.
        sets: The input sets with what it gives.
        copies: Its noise.
    """

    error: str
    broken: Mapping[str, str]
    sets: Mapping[int, InputSet]
    copies: PerturbedCopies


class DeployedModels:
    """Compares results of one original as they are deployed.

    Args:
        runner: Runs them.
        originals: The original, behind what is loaded only.
        deployment: How they are deployed.

    Attributes:
        differing: The input sets on which the last result differed or did not run.
        runner: Runs them.
    """

    def __init__(self, runner: ModelRunner, originals: Sequence[Source], deployment: Deployment = DEFAULTS) -> None:
        self.differing: list[int] = []
        self.runner = runner
        self._deployment = deployment
        self._originals = tuple(originals)
        self._original: _Original | None = None

    def run_of(self, results: Sequence[Source], reference: ReferenceOutputs) -> DeployedRun:
        """A run of a result.

        Args:
            results: The result, behind what is loaded only.
            reference: The input sets.
        """
        return DeployedRun(self.runner, results, f"{PREFIX}result", reference)

    def verdict(
        self,
        run: DeployedRun,
        reference: ReferenceOutputs,
        copies: PerturbedCopies,
        every: ReferenceOutputs,
        *,
        spreading: bool,
    ) -> Verification:
        """The verdict on a result.

        Args:
            run: Its run, of `run_of`.
            reference: The original's outputs without optimizations, on the input sets to compare.
            copies: Its noise without optimizations.
            every: The same outputs on all input sets that may have to be compared.
            spreading: As `ResultComparison` takes it.
        """
        if run.has_died:
            run = run.again()  # so that it cannot be for what has run before it
        comparing = ResultComparison(self.runner, reference, copies, PREFIX, spreading=spreading)
        verdict = comparing.verdict_on(run)
        self.differing = comparing.differing
        if verdict.status == "impossible":
            return _not_compared(verdict, verdict.reason)
        if verdict.status != "differs":
            return dataclasses.replace(verdict, as_deployed=True)
        how = self._deployment
        original = self._original = self._original or self._run_original(every, copies)
        if original.error:
            return _not_compared(verdict, f"{how.subject} {how.breaks}: {original.error}")
        wrong = {row.name for row in verdict.outputs if not row.agrees}
        if not wrong:  # it does not run
            return dataclasses.replace(verdict, reason=f"{how.with_}, {verdict.reason}", as_deployed=False)
        sets = {number: original.sets[number] for number in reference.sets}
        there = dataclasses.replace(reference, sets=sets).only(wrong, None)
        comparing = ResultComparison(self.runner, there, original.copies, PREFIX, spreading=spreading)
        return self._judged(verdict, comparing, comparing.verdict_on(run), original.broken)

    def _judged(
        self, verdict: Verification, comparing: ResultComparison, beside: Verification, broken: Mapping[str, str]
    ) -> Verification:
        """The verdict on a result of which outputs differ from the original's without optimizations.

        Args:
            verdict: How it compares with that.
            comparing: What has compared it with the original under the same optimizations.
            beside: How it compares with this one.
            broken: The original's own outputs that differ so.
        """
        rows = {row.name: row for row in beside.outputs}
        wrong = [row for row in beside.outputs if not row.agrees and row.name not in broken]
        if wrong:
            self.differing = comparing.differing
            outputs = tuple(rows.get(row.name, row) for row in verdict.outputs if row.name not in broken)
            worst = max(wrong, key=lambda row: row.worst)
            reason = f"{self._deployment.with_}, output {quoted(worst.name)}: {worst.detail}"
            return dataclasses.replace(
                verdict,
                reason=reason, worst=worst.worst, worst_output=worst.name, outputs=outputs, as_deployed=False,
            )  # fmt: skip
        self.differing = []
        agrees = all(row.agrees for row in beside.outputs)
        theirs = [f"output {quoted(name)}: {broken[name]}" for name in rows if name in broken]
        how = self._deployment
        reason = f"{how.subject} {how.changes}: {theirs[0]}" if theirs else ""
        return dataclasses.replace(
            verdict, status="verified", reason="", as_deployed=agrees or None, not_as_deployed=reason
        )

    def _run_original(self, reference: ReferenceOutputs, copies: PerturbedCopies) -> _Original:
        """Run the original, and compare it with itself without optimizations."""
        label = f"{PREFIX}original-"
        run = DeployedRun(self.runner, self._originals, f"{label}result", reference)
        if run.has_died:
            run = run.again()
        own = ResultComparison(self.runner, reference, copies, label).verdict_on(run)
        try:
            sets = run.sets()
        except WorkerError as error:
            return _Original(str(error), {}, {}, copies)
        return _Original(
            "",
            {row.name: row.detail for row in own.outputs if not row.agrees},
            sets,
            PerturbedCopies(
                self.runner,
                self._originals[-1],
                sets,
                is_quantized=bool(reference.quantized),
                prefix=PREFIX,
                optimize=True,
            ),
        )


def ordinary(
    reference: ReferenceOutputs, *, thorough: bool, further_seconds: float = FURTHER_SECONDS
) -> ReferenceOutputs:
    """The same with the input sets that are compared.

    Args:
        reference: The original's outputs.
        thorough: Whether all are.
        further_seconds: What the original may take for more than one input set.
    """
    if thorough:
        return reference
    chosen: list[int] = []
    left = further_seconds
    for number, input_set in sorted(reference.sets.items(), key=lambda item: (not item[1].is_ordinary, item[0])):
        if chosen and (not input_set.is_ordinary or input_set.seconds > left):
            continue
        left -= input_set.seconds if chosen else 0
        chosen.append(number)
    return reference.only(None, chosen)


def _not_compared(verdict: Verification, reason: str) -> Verification:
    return dataclasses.replace(verdict, status="verified", reason="", not_as_deployed=reason)

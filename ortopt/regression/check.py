"""A whole check: which models run, where, in which order, and what is said of each."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict

from msgspec import Struct, structs

from ortopt import api, documents
from ortopt.errors import OrtoptError, OutputError
from ortopt.regression import shards
from ortopt.regression.baseline import Baseline
from ortopt.regression.case import Case, possible_data, split_name
from ortopt.regression.comparison import judge, skipped, unchanged, vanished
from ortopt.regression.facts import checked, hash_of, options_text, versions
from ortopt.regression.manifest import Manifest
from ortopt.regression.model_run import RESULT, Answer
from ortopt.regression.pool import Job
from ortopt.regression.results import Check, Result, Shard, accepted, sorted_by_name
from ortopt.terminal_text import one_line, quoted

_NO_JOURNAL: Final = "no journal of ortopt check"


class _Order(TypedDict):
    name: str


class _Row(Struct):
    versions: dict[str, str]
    order: dict[str, Any]
    answer: Answer


class Journal:
    """A file with a line for each model that is done; a line that was cut off is ignored.

    Args:
        path: The file; it need not exist.
        versions: The versions of this run: what was found with others is not taken.

    Raises:
        InvalidModelError: The file is something else.
        OutputError: It cannot be written.
    """

    def __init__(self, path: Path, versions: Mapping[str, str]) -> None:
        self._path = path
        self._versions = dict(versions)
        self._known: dict[str, tuple[dict[str, Any], Answer]] = {}
        self._read()
        try:
            self._file = path.open("a", encoding="utf-8")
            if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
                self._file.write("\n")
        except OSError as error:
            raise OutputError(f"cannot write {quoted(str(path))}: {error.strerror or error}") from error

    def _read(self) -> None:
        if not self._path.exists():
            return
        lines = documents.contents(self._path).splitlines()
        for number, line in enumerate(lines, 1):
            try:
                self._take(line)
            except json.JSONDecodeError as error:
                if number == 1 and len(lines) > 1:
                    raise documents.invalid(self._path, _NO_JOURNAL, error) from error
            except ValueError as error:
                raise documents.invalid(self._path, _NO_JOURNAL, f"line {number}: {error}") from error

    def _take(self, line: bytes) -> None:
        """Keep what a line tells.

        Raises:
            JSONDecodeError: If it was cut off.
            ValueError: If it is something else.
        """
        row = documents.typed(documents.parse_json(line), _Row)
        documents.typed(row.order, _Order)
        checked(row.answer.facts, whole=row.answer.error is None)
        if row.versions == self._versions:
            self._known[row.order["name"]] = row.order, row.answer

    def answer(self, order: Mapping[str, Any], model: str) -> Answer | None:
        """What came of an order in an earlier run; None if it has not run, or was about another model.

        Args:
            order: As `ortopt.regression.case.Case.order` makes it.
            model: The hash of the model.
        """
        known = self._known.get(order["name"])
        if known is None or known[0] != dict(order) or known[1].facts.get("model") != model:
            return None
        return known[1]

    def add(self, order: Mapping[str, Any], answer: Answer) -> None:
        """Write what came of an order; it is in the file when this returns."""
        row = {"versions": self._versions, "order": dict(order), "answer": structs.asdict(answer)}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Runner(Protocol):
    """Runs jobs and tells of each: `ortopt.regression.pool.Pool`, or many machines."""

    def run(self, jobs: Sequence[Job], done: Callable[[Job, Answer], None], begun: Callable[[Job], None]) -> None:
        """Run all jobs; ``done`` and ``begun`` are called for each, in one thread at a time."""


class ProgressListener:
    """Is told how a check goes on; by itself it says nothing."""

    def expect(self, models: int, seconds: float) -> None:
        """So many models are going to run; they took so many seconds when the baseline was written."""

    def begun(self, name: str) -> None:
        """A model's turn has come."""

    def done(self, result: Result) -> None:
        """Something is known of a model."""


@dataclass(slots=True)
class Schedule:
    """How a check goes about it.

    Attributes:
        runner: What runs the models.
        baseline: What is compared with; None where nothing is.
        changed_since: Models that are as here need not run.
        accept: Whether what is worse is accepted: the baseline is going to be written anew.
        prune: With ``accept``: whether models that are no longer there leave it.
        strict: Whether a result that could not be verified, and a pass that failed, are failures.
        shard: Which part of the zoo runs; None for all of it.
        journal: Where what is done is written, and read again.
        latency: Measures the result of an order against its original: given the order and the result's file.
    """

    runner: Runner
    baseline: Baseline | None = None
    changed_since: Baseline | None = None
    accept: bool = False
    prune: bool = False
    strict: bool = False
    shard: Shard | None = None
    journal: Path | None = None
    latency: Callable[[dict[str, Any], Path], dict[str, Any]] | None = None
    versions: dict[str, str] = field(default_factory=versions)


class RunningCheck:
    """One check.

    Args:
        cases: The models.
        plan: How they are run.
        gone: Cases of the baseline that are named, and that there are none of any more.

    Attributes:
        results: What is known so far, by name.
    """

    def __init__(self, cases: Sequence[Case], plan: Schedule, gone: Sequence[Case] = ()) -> None:
        self._plan = plan
        self._gone = list(gone)
        self._watcher = ProgressListener()
        self._all = list(cases)
        self._cases = list(cases) if plan.shard is None else shards.part_of(cases, plan.shard, plan.baseline)
        self.results: dict[str, Result] = {}

    def watch(self, watcher: ProgressListener) -> None:
        """Tell somebody how it goes on.

        Args:
            watcher: Is told.
        """
        self._watcher = watcher

    def run(self) -> Check:
        """Run what has to run.

        Raises:
            KeyboardInterrupt: It was interrupted; `results` and `check` hold what is known.
        """
        started = time.perf_counter()
        with contextlib.ExitStack() as stack:
            journal = None
            if self._plan.journal is not None:
                journal = Journal(self._plan.journal, self._plan.versions)
                stack.callback(journal.close)
            folder = None
            if self._plan.latency is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ortopt-check-")))
            self._run(journal, folder)
        return self.check(time.perf_counter() - started)

    def _run(self, journal: Journal | None, folder: Path | None) -> None:
        for result in self._vanished():
            self._say(result)
        pending = []
        for case in shards.dearest_first(self._cases, self._plan.baseline):
            known = self._known(case, journal)
            if known is not None:
                self._say(known)
            else:
                pending.append(case)
        costs = [shards.cost_of(case, self._plan.baseline) or 0.0 for case in pending]
        self._watcher.expect(len(pending), sum(costs))
        jobs = []
        for number, case in enumerate(pending):
            order = case.order()
            if folder is not None:
                (folder / str(number)).mkdir()
                order["result"] = str(folder / str(number) / RESULT)
            jobs.append(Job(number, order, case.nbytes))
        answers: dict[int, Answer] = {}

        def done(job: Job, answer: Answer) -> None:
            if self._plan.latency is not None and answer.error is None:
                answers[job.key] = answer
            else:
                self._finish(pending[job.key], answer, journal)

        if jobs:
            self._plan.runner.run(jobs, done, lambda job: self._watcher.begun(pending[job.key].name))
        for job in jobs:
            if job.key in answers:
                self._measure(job, pending[job.key], answers[job.key])
                self._finish(pending[job.key], answers[job.key], journal)

    def _measure(self, job: Job, case: Case, answer: Answer) -> None:
        """Measure alone, when nothing else runs."""
        assert self._plan.latency is not None
        path = Path(job.order["result"])
        self._watcher.begun(f"{case.name} (latency)")
        try:
            answer.facts["latency"] = self._plan.latency(dict(job.order), path)
        except OrtoptError as error:
            reasons = answer.facts.get("reasons", [])
            answer.facts["reasons"] = [*reasons, one_line(f"its latency was not measured: {error}")]
        for file in path.parent.iterdir():
            file.unlink()

    def _finish(self, case: Case, answer: Answer, journal: Journal | None) -> None:
        """Record an answer, and say what it means."""
        if journal is not None:
            journal.add(case.order(), answer)
        self._say(judge(case, answer, self._plan.baseline, self._plan.versions, strict=self._plan.strict))

    def _vanished(self) -> Iterator[Result]:
        """What is said of models that are no longer there; of parts of a zoo, the first one says it."""
        baseline = self._plan.baseline
        if baseline is not None and (self._plan.shard is None or self._plan.shard.number == 1):
            models = {case.model for case in self._all}
            for case in self._gone:
                yield vanished(case, baseline, has_model=case.model in models, pruned=self._plan.prune)

    def _known(self, case: Case, journal: Journal | None) -> Result | None:
        """The result of a case that need not run."""
        if case.settings.skip:
            return skipped(case)
        since = self._plan.changed_since
        if since is None and journal is None:
            return None
        model = _model_hash(case)
        if model is None:
            return None
        answer = None if journal is None else journal.answer(case.order(), model)
        if answer is not None and (self._plan.latency is None or "latency" in answer.facts):
            return judge(case, answer, self._plan.baseline, self._plan.versions, strict=self._plan.strict)
        facts = None if since is None else since.models.get(case.name)
        if since is None or facts is None or dict(since.versions) != self._plan.versions:
            return None
        same = facts.get("model") == model and facts.get("options") == _options(case)
        return unchanged(case, facts) if same else None

    def _say(self, result: Result) -> None:
        if self._plan.accept:
            result = accepted(result, pruned=self._plan.prune)
        self.results[result.name] = result
        self._watcher.done(result)

    def check(self, seconds: float, *, stopped: bool = False) -> Check:
        """What is known.

        Args:
            seconds: How long it took.
            stopped: Whether it was interrupted.
        """
        baseline = self._plan.baseline
        named = {case.name for case in (*self._all, *self._gone)}
        missing = () if baseline is None else tuple(sorted(baseline.models.keys() - named))
        return Check(
            sorted_by_name(self.results.values()),
            self._plan.versions,
            missing=missing,
            shard=self._plan.shard,
            seconds=round(seconds, 3),
            stopped=stopped,
            notes=notes(baseline, self._plan.versions),
        )


def notes(baseline: Baseline | None, now: dict[str, str]) -> tuple[str, ...]:
    """What is to be told of a baseline as a whole: other versions, and figures that it lacks.

    Args:
        baseline: The baseline.
        now: The versions of what is compared with it.
    """
    if baseline is None or not baseline.models:
        return ()
    told = []
    old = [name for name, facts in baseline.models.items() if not {"original", "blocks"} <= facts.keys()]
    if old:
        told.append(
            f"{len(old)} models of the baseline were written by an older ortopt, without blocks and without figures of"
            " the originals: these are not compared (--update adds them)"
        )
    if dict(baseline.versions) == now:
        return tuple(told)
    changed = [
        f"{name} {now.get(name, 'none')} (baseline {baseline.versions.get(name, 'none')})"
        for name in {**baseline.versions, **now}
        if now.get(name) != baseline.versions.get(name)
    ]
    return (f"other versions than the baseline's, so results may have other bytes: {', '.join(changed)}", *told)


def _model_hash(case: Case) -> str | None:
    """The hash of a case's model as `model_run` computes it; None where it cannot be told without loading it."""
    try:
        if case.path is None:
            from ortopt import zoo

            return hash_of([zoo.cached(case.model.partition(":")[2])])
        if not possible_data(case.path):
            return hash_of([case.path])
        from ortopt.serialization.load import SOURCE_KEY, load

        return hash_of([case.path, *map(Path, load(case.path).meta[SOURCE_KEY].data)])
    except (OSError, OrtoptError):
        return None


def _options(case: Case) -> str:
    return options_text(api.make_options(**case.settings.options))


def compared_baselines(old: tuple[Path, Baseline], new: tuple[Path, Baseline], manifest: Manifest) -> Check:
    """The second baseline against the first.

    Args:
        old: The file and the baseline that is compared with.
        new: The file and the one that is judged.
        manifest: Where thresholds and accepted changes are; what it says of how models are run is not asked.
    """
    (old_path, before), (new_path, now) = old, new
    models = {split_name(name)[0] for name in now.models}

    def result(name: str) -> Result:
        model, configuration = split_name(name)
        case = Case(model, configuration, None, manifest.settings(model, configuration, {}))
        if name not in now.models:
            return vanished(case, before, has_model=model in models, pruned=False)
        if case.settings.skip:
            return skipped(case)
        answer = Answer(dict(now.models[name]), None, "")
        return judge(case, answer, before, now.versions, strict=False)

    return Check(
        tuple(map(result, sorted({*before.models, *now.models}))),
        now.versions,
        str(old_path),
        compared=str(new_path),
        notes=notes(before, dict(now.versions)),
    )

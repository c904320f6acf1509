"""What a session, or the environment of its process, can make faster and a file cannot: each lever, and its Python.

They are measured on a model: processes with and without one, in turns.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from ortopt.cancellation import CancellationToken
from ortopt.measurement.asking import MeasurementBudget, ask
from ortopt.measurement.pairs import SLOWER, Sample, Series, Speed
from ortopt.system import processor
from ortopt.verification.comparison import Comparison, error_text
from ortopt.verification.input_sets import inputs_from

_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_GLIBC_WITH_HUGE_PAGES: Final = (2, 35)

LARGE_WEIGHTS: Final = 8 << 20
"""Bytes of a model from which its weights take several huge pages, and no cache of a core holds them."""

_COPIED_PER_SECOND: Final = 5e9
_SHARE_OF_A_CALL: Final = 0.01


@dataclass(frozen=True, slots=True)
class Lever:
    """A setting of a session or of its process.

    Attributes:
        name: What it is, in words.
        config: Entries of the session's configuration.
        attributes: Attributes of ``onnxruntime.SessionOptions``.
        environment: Variables that must be set before the process starts.
        binding: Whether results stay in ONNX Runtime's memory instead of being copied to numpy.
        by_clock: Whether it is about several threads: then the clock says what a call takes, not the thread's own time.
        note: What to know of it, for a comment beside its line.
    """

    name: str
    config: tuple[tuple[str, str], ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    binding: bool = False
    by_clock: bool = False
    note: str = ""

    def as_order(self) -> dict[str, Any]:
        """What the process that measures is told."""
        return {"config": list(self.config), "attributes": list(self.attributes), "binding": self.binding}


NONE: Final = Lever("none")
"""Nothing is set."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a model, to tell which levers can matter.

    Attributes:
        underflows: Whether a call computes numbers below the smallest normal one; None where that is not known.
        output_bytes: Bytes of its results.
        seconds: Seconds of a call.
        model_bytes: Bytes of its file and weights.
        has_open_sizes: Whether inputs have open sizes, for each of which memory is planned anew.
        cores: Cores that the process may use.
    """

    underflows: bool | None
    output_bytes: int
    seconds: float
    model_bytes: int
    has_open_sizes: bool
    cores: int


def together(levers: Iterable[Lever]) -> Lever:
    """All of some levers as one."""
    every = tuple(levers)
    return Lever(
        ", ".join(lever.name for lever in every) or NONE.name,
        tuple(entry for lever in every for entry in lever.config),
        tuple(entry for lever in every for entry in lever.attributes),
        tuple(entry for lever in every for entry in lever.environment),
        any(lever.binding for lever in every),
        any(lever.by_clock for lever in every),
    )


def worth_trying(facts: RunFacts, *, threads: int | None) -> tuple[list[Lever], list[str]]:
    """The levers that can matter to a model, those that may gain most first, and why others are not tried.

    Args:
        facts: What is known of it.
        threads: Threads that the caller has asked for; None where the number is a lever, too.
    """
    found = list(_candidates(facts, threads))
    return [lever for lever, reason in found if not reason], [
        f"{lever.name}: {reason}" for lever, reason in found if reason
    ]


def _candidates(facts: RunFacts, threads: int | None) -> Iterator[tuple[Lever, str]]:
    large = "" if facts.model_bytes >= LARGE_WEIGHTS else "the weights are small"
    yield (
        Lever(
            "denormals as zero",
            (("session.set_denormal_as_zero", "1"),),
            note="the first session of a process decides, for the thread that makes it and for its pool",
        ),
        "no call computes any" if facts.underflows is False else "",
    )
    yield (
        Lever("huge pages for malloc", environment=(("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),)),
        _no_huge_pages() or large,
    )
    copied = facts.output_bytes / _COPIED_PER_SECOND
    few = "" if copied >= _SHARE_OF_A_CALL * facts.seconds else "copying the results takes less than 1 % of a call"
    yield Lever("results stay bound", binding=True, note="feed what comes back by bind_ortvalue_input"), few
    for number in _numbers_of_threads(facts.cores) if threads is None else ():
        name = "one thread" if number == 1 else f"{number} threads"
        yield Lever(name, attributes=(("intra_op_num_threads", number),), by_clock=True), ""
    yield (
        Lever("no spinning", (("session.intra_op.allow_spinning", "0"),), by_clock=True),
        "there is one thread" if threads == 1 or facts.cores == 1 else "",
    )
    yield (
        Lever("no memory pattern", attributes=(("enable_mem_pattern", False),)),
        "" if facts.has_open_sizes else "all sizes are fixed",
    )
    yield Lever("no arena", attributes=(("enable_cpu_mem_arena", False),)), large
    yield Lever("weights outside of the arena", (("session.use_device_allocator_for_initializers", "1"),)), large
    yield Lever("no prepacked weights", (("session.disable_prepacking", "1"),)), large


def _numbers_of_threads(cores: int) -> tuple[int, ...]:
    """One thread, and half of the cores; all of them are ONNX Runtime's default."""
    return tuple(dict.fromkeys(number for number in (1, cores // 2) if 0 < number < cores))


def _no_huge_pages() -> str:
    """Why malloc cannot ask for huge pages here; empty if it can."""
    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name != "glibc" or numbers < _GLIBC_WITH_HUGE_PAGES:
        return "it needs glibc 2.35"
    try:
        mode = _HUGE_PAGES.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return "the system says nothing of them"
    return "the system has turned them off" if "[never]" in mode else ""


def python_lines(lever: Lever, each: Iterable[Lever], *, model: str, threads: int) -> list[str]:
    """The lines of Python, with the environment as comments, that set levers.

    Args:
        lever: All of them as one.
        each: The levers, for their notes.
        model: The model's path.
        threads: Threads within an op that all was measured with; 0 is ONNX Runtime's default.
    """
    notes = {entry: one.note for one in each for entry in one.config if one.note}
    lines = [f"# start the process with {name}={value}" for name, value in lever.environment]
    lines += ["import onnxruntime as ort", "", "options = ort.SessionOptions()"]
    attributes = dict(lever.attributes)
    if threads and not lever.by_clock:
        attributes.setdefault("intra_op_num_threads", threads)
    lines += [f"options.{name} = {value!r}" for name, value in attributes.items()]
    for key, value in lever.config:
        note = notes.get((key, value))
        lines += [f"# {note}"] if note else []
        lines.append(f'options.add_session_config_entry("{key}", "{value}")')
    lines.append(f'session = ort.InferenceSession({model!r}, options, providers=["CPUExecutionProvider"])')
    if lever.binding:
        lines += [
            "binding = session.io_binding()",
            "for name, array in feeds.items():  # your inputs, by name",
            "    binding.bind_cpu_input(name, array)",
            "for output in session.get_outputs():",
            '    binding.bind_output(output.name, "cpu")',
            "session.run_with_iobinding(binding)",
            "results = binding.get_outputs()  # bind_ortvalue_input takes them for the next call",
        ]
    return lines


_MIN_ROUNDS: Final = 2
"""Pairs of processes, in both orders."""

_SMALLEST: Final = 2.0**-126
"""The smallest normal number of float32: what is below may become 0, and no more."""

_WORTH: Final = 1.01
_PROMISING: Final = 1.03
_SHARE: Final = 0.15
"""The share of the time left that a lever may take which promises little; the others go on until it is clear."""

_FOR_ALL: Final = 0.25
"""The share of the time that is kept for all levers together."""


@dataclass(frozen=True, slots=True)
class LeverStep:
    """A lever that was measured.

    Attributes:
        lever: The lever.
        speeds: How fast the model is with it, compared with none; one for each of the inputs.
        kept: Whether it is taken: over all inputs clearly faster, on none slower, with the original's results.
        reason: Why it is not, in words.
    """

    lever: Lever
    speeds: tuple[Speed, ...] = ()
    kept: bool = False
    reason: str = ""


@dataclass(slots=True)
class Recipe:
    """What sessions of a model gain by settings.

    Attributes:
        threads: Threads within an op that was measured with; levers of threads are measured beside the default.
        steps: What was measured.
        not_tried: Levers that cannot matter, and why.
        together: How fast all that are kept are, compared with none; None where none is.
        kept: Those that are kept.
        reason: Why nothing was measured; empty if something was.
    """

    threads: int = 1
    steps: list[LeverStep] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)
    together: tuple[Speed, ...] | None = None
    kept: tuple[Lever, ...] = ()
    reason: str = ""

    def python(self, model: str) -> list[str]:
        """The lines of Python that set what is kept; none where nothing is.

        Args:
            model: The model's path.
        """
        lines = python_lines(together(self.kept), self.kept, model=model, threads=self.threads)
        return lines if self.kept else []


def measured_recipe(
    original: Path,
    model: Path,
    inputs: Sequence[Path],
    budget: MeasurementBudget,
    *,
    threads: int | None,
    has_open_sizes: bool,
    deadline: float,
    token: CancellationToken,
) -> Recipe:
    """Measure which levers make sessions of a model faster, and whether they keep the original's results.

    Args:
        original: The original, whose results are right.
        model: The model.
        inputs: Folders of stored inputs.
        budget: How much is measured in a process.
        threads: Threads that the caller has asked for, or None.
        has_open_sizes: Whether the model's inputs have open sizes.
        deadline: When no further process is started, on the clock of `time.monotonic`.
        token: Cancellation token.
    """
    trials = _Trials(original, model, tuple(inputs), replace(budget, repeat=20, seconds=0.5), deadline, token)
    facts = trials.facts(has_open_sizes=has_open_sizes)
    if facts is None:
        return Recipe(reason="the model could not be run in a session of its own")
    levers, not_tried = worth_trying(facts, threads=threads)
    recipe = Recipe(budget.threads, not_tried=not_tried)
    trials.deadline -= _FOR_ALL * max(deadline - time.monotonic(), 0.0)
    for lever in levers:
        if time.monotonic() > trials.deadline:
            recipe.not_tried.append(f"{lever.name}: no time was left (--tune-seconds)")
            continue
        recipe.steps.append(trials.tried(lever))
    kept = [step.lever for step in recipe.steps if step.kept]
    trials.deadline = deadline
    trials.choose(recipe, kept)
    return recipe


@dataclass(slots=True)
class _Trials:
    """Runs of a model with and without levers, each in processes of its own.

    Attributes:
        original: The original.
        model: The model.
        inputs: Folders of stored inputs.
        budget: How much is measured in a process.
        deadline: When no further process is started.
        token: Cancellation token.
        right: The original's results.
        plain: The model's, without any lever.
        types: The types of the results.
        count: Runs so far.
    """

    original: Path
    model: Path
    inputs: tuple[Path, ...]
    budget: MeasurementBudget
    deadline: float
    token: CancellationToken
    right: dict[str, Any] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def facts(self, *, has_open_sizes: bool) -> RunFacts | None:
        """Run the original and the model once: what can matter, and what is right."""
        right, plain = self._run(self.original, NONE), self._run(self.model, NONE)
        if "error" in right or "error" in plain:
            return None
        self.right, self.plain, self.types = right["outputs"], plain["outputs"], right["types"]
        size = sum(path.stat().st_size for path in self.model.parent.iterdir() if path.is_file())
        cores = processor.usable()
        return RunFacts(plain["underflows"], plain["bytes"], plain["seconds"], size, has_open_sizes, cores)

    def tried(self, lever: Lever) -> LeverStep:
        """Measure a lever against none, until it is clear or its time is over."""
        end = time.monotonic() + _SHARE * max(self.deadline - time.monotonic(), 0.0)
        budget = replace(self.budget, threads=0) if lever.by_clock and self.budget.threads == 1 else self.budget
        every = [Series() for _ in self.inputs]
        for number in range(self.budget.rounds):
            if number > 1 and time.monotonic() > (self.deadline if _median(every) >= _PROMISING else end):
                break
            order = (NONE, lever) if number % 2 == 0 else (lever, NONE)
            taken = {one.name: self._calls(one, budget) for one in order}
            for series, first, second in zip(every, taken[NONE.name], taken[lever.name], strict=True):
                series.add(_sample(first, second))
            if any(series.error for series in every):
                return LeverStep(lever, reason="the model does not run so")
            if _median(every) < (_WORTH if number else 1.0) or (number and all(series.is_clear for series in every)):
                break
        return self._judged(lever, tuple(speed for series in every if (speed := series.speed) is not None), number + 1)

    def _judged(self, lever: Lever, speeds: tuple[Speed, ...], rounds: int) -> LeverStep:
        """What a lever's speeds say; in one process it may be the memory that makes the difference."""
        if geometric_mean([speed.median for speed in speeds]) < _WORTH or any(speed.high < SLOWER for speed in speeds):
            return LeverStep(lever, speeds, reason="it gains nothing")
        if rounds < _MIN_ROUNDS or geometric_mean([speed.low for speed in speeds]) <= 1:
            return LeverStep(lever, speeds, reason="its interval is not clear of 1")
        differs = self._difference(lever)
        return LeverStep(lever, speeds, kept=not differs, reason=differs)

    def choose(self, recipe: Recipe, kept: list[Lever]) -> None:
        """Keep what is faster together; of several that are not, the best alone."""
        if len(kept) > 1:
            step = self.tried(together(kept))
            if step.kept:
                recipe.kept, recipe.together = tuple(kept), step.speeds
                return
        best = max((step for step in recipe.steps if step.kept), key=_gain, default=None)
        if best is not None:
            recipe.kept, recipe.together = (best.lever,), best.speeds

    def _difference(self, lever: Lever) -> str:
        """How the results under a lever differ from the original's; empty if they agree."""
        found = self._run(self.model, lever)
        if "error" in found:
            return "the model does not run so"
        compare = Comparison(steps=dict.fromkeys(self.right, _SMALLEST))
        for name, got in found["outputs"].items():
            rows = [compare.of(name, self.types[name], one[name], got) for one in (self.right, self.plain)]
            if not any(row.agrees for row in rows):  # what the model itself rounds otherwise is no matter of the lever
                return f"results differ: {error_text(rows[0])}"
        return ""

    def _run(self, model: Path, lever: Lever) -> dict[str, Any]:
        """One call on the first inputs: its results, and what is known of it."""
        folder = self.inputs[0].parent / f"results{self.count}"
        self.count += 1
        one = {"models": [str(model)], "inputs": [str(self.inputs[0])], "lever": lever.as_order()}
        (answer,) = ask(
            "once", [{**one, "results": str(folder)}], self.budget, self.token, environment=dict(lever.environment)
        )
        return answer if "error" in answer else {**answer, "outputs": inputs_from(folder)}

    def _calls(self, lever: Lever, budget: MeasurementBudget) -> list[list[float]]:
        """Seconds of calls on each of the inputs; none where the model does not run."""
        one = {"models": [str(self.model)], "inputs": [str(path) for path in self.inputs], "lever": lever.as_order()}
        (answer,) = ask("time", [one], budget, self.token, environment=dict(lever.environment))
        return [[] for _ in self.inputs] if "error" in answer else [calls for (calls,) in answer["calls"]]


def _sample(first: Sequence[float], second: Sequence[float]) -> Sample:
    count = min(len(first), len(second))
    return Sample.of(first[:count], second[:count]) if count else Sample(error="it does not run")


def _median(every: Sequence[Series]) -> float:
    return geometric_mean([speed.median for series in every if (speed := series.speed) is not None])


def _gain(step: LeverStep) -> float:
    return geometric_mean([speed.median for speed in step.speeds])

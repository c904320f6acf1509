"""`tune`: which passes and fused forms make a model faster here, measured until that is clear or time is over."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from ortopt.analysis.costs import HYSTERESIS
from ortopt.analysis.providers import CPU
from ortopt.cancellation import CancellationToken
from ortopt.errors import InvalidModelError, OptimizationCancelled, OrtoptError
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.choices import Candidate, Choices, Declined, candidates, merged
from ortopt.measurement.inputs import StoredInputs, attempts, stored_inputs
from ortopt.measurement.pairs import BRIEF, SLOWER, Speed, compare
from ortopt.measurement.recipe import Recipe, measured_recipe
from ortopt.observers import Observer
from ortopt.optimization.request import new_optimization
from ortopt.optimization.run import Source
from ortopt.options import Fusions, Options

if TYPE_CHECKING:
    import numpy as np

    from ortopt.optimization.result import OptimizeResult

SECONDS: Final = 60.0
"""How long tuning may take unless the caller says otherwise."""

_FOR_FORMS: Final = 0.4
_FOR_SETTINGS: Final = 0.75
"""The shares of the time after which forms give way to settings of sessions, and these to the rest."""

_FOR_ONE: Final = 0.15
"""The share of the time that one choice may take."""


@dataclass(frozen=True, slots=True)
class Step:
    """A choice that was measured.

    Attributes:
        choice: What was chosen, in words.
        speeds: How fast the model is with it, compared with the best one before; one for each of the inputs.
        kept: Whether it was taken.
    """

    choice: str
    speeds: tuple[Speed, ...]
    kept: bool

    @property
    def gain(self) -> float:
        """The geometric mean of the medians."""
        return geometric_mean(speed.median for speed in self.speeds)

    @property
    def least(self) -> float:
        """The geometric mean of the intervals' lower ends: a gain that is not clear is none."""
        return geometric_mean(speed.low for speed in self.speeds)


@dataclass(slots=True)
class Tuning:
    """What tuning found.

    Attributes:
        choices: What is best.
        inputs: What was measured with, at each of the sizes.
        steps: What was measured, in order.
        against_original: The speed of the best model compared with the original; None where that was not measured.
        unmeasured: Choices that there was no time for.
        reason: Why nothing could be measured; empty if something was.
        seconds: How long it took.
        recipe: What sessions of the result gain by settings; None where that was not measured.
    """

    choices: Choices
    inputs: tuple[StoredInputs, ...] = ()
    steps: list[Step] = field(default_factory=list)
    against_original: tuple[Speed, ...] | None = None
    unmeasured: list[str] = field(default_factory=list)
    reason: str = ""
    seconds: float = 0.0
    recipe: Recipe | None = None

    @property
    def sizes(self) -> tuple[Mapping[str, int], ...]:
        """The sizes of the open dimensions of each of the inputs."""
        return tuple(stored.sizes for stored in self.inputs)


def tune(
    source: Source,
    options: Options,
    *,
    seconds: float = SECONDS,
    threads: int | None = None,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
    cancellation: CancellationToken | None = None,
) -> Tuning:
    """Find the choices with which a model is fastest on this machine.

    Forms come first, then settings of sessions, then single passes; none takes more than 15 % of the time.
    Each is measured against the best so far, in processes that hold both models and call them in turns; it is taken
    where it is faster by more than 3 % over all inputs, and slower on none. What is best at the end is compared with
    the original; where that is faster, level 1 is tried, and then the original's form stays.

    Args:
        source: The model; a stream must be read before.
        options: Options of the run; what they disable stays disabled.
        seconds: When no further choice is tried.
        threads: Threads within an op with which the result will run; 0 is ONNX Runtime's default. None times with one,
            which other processes disturb least, and takes no form that loses with several.
        inputs: Inputs to time with; else some are drawn, at representative sizes.
        cancellation: Ends tuning with the best choices so far.

    Returns:
        The choices, and what was measured.
    """
    started = time.monotonic()
    tuning = Tuning(Choices.of(options))
    with tempfile.TemporaryDirectory(prefix="ortopt-tune-") as folder:
        used = 1 if threads is None else threads
        budget = replace(BRIEF, providers=options.providers, threads=used if tuple(options.providers) == (CPU,) else 0)
        token = cancellation or CancellationToken()
        tuner = _Tuner(source, options, Path(folder), budget, started, seconds, token, tuning, threads)
        try:
            tuner.run(inputs)
        except OptimizationCancelled:
            tuning.reason = tuning.reason or ("" if tuning.steps else "it was interrupted")
    tuning.seconds = time.monotonic() - started
    return tuning


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that was optimized with some choices."""

    choices: Choices
    path: Path
    digest: str
    result: OptimizeResult


@dataclass(slots=True)
class _Tuner:
    source: Source
    options: Options
    folder: Path
    budget: MeasurementBudget
    started: float
    seconds: float
    token: CancellationToken
    tuning: Tuning
    threads: int | None
    inputs: list[Path] = field(default_factory=list)
    count: int = 0
    refuted: set[str] = field(default_factory=set)

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]] | None) -> None:
        tuning = self.tuning
        plain = structs.replace(tuning.choices, level=0, fusions=Fusions.DEFAULT, enable=(), force_forms=())
        original = self._made(plain)
        if original is None:
            tuning.reason = "the original could not be loaded"
            return
        try:
            self._draw(original, inputs)
        except InvalidModelError as error:
            tuning.reason = str(error)
            return
        declined = Declined()
        best = self._made(tuning.choices, declined)
        if best is None:
            tuning.reason = "the model could not be optimized"
            return
        self.refuted.add(best.digest)
        one_thread, target = self.threads == 1, self.options.target
        pending = list(candidates(tuning.choices, best.result.summary, declined, one_thread=one_thread, target=target))
        pending, best = self._through(pending, best, _FOR_FORMS, forms_only=True)
        self._try_settings(original, best)
        pending, best = self._through(pending, best, 1.0)
        tuning.unmeasured += [candidate.name for candidate in pending]
        self._against(original, best)

    def _through(
        self, pending: list[Candidate], best: _Model, share: float, *, forms_only: bool = False
    ) -> tuple[list[Candidate], _Model]:
        """Try candidates until a share of the time is over; those that are left, and the best model."""
        while pending and time.monotonic() <= self._until(share) and not (forms_only and pending[0].is_pass):
            candidate = pending.pop(0)
            best = self._tried(candidate.name, merged(best.choices, candidate.choices), best)
            self.tuning.choices = best.choices
        return pending, best

    def _until(self, share: float) -> float:
        """When a share of the time is over, on the clock of `time.monotonic`."""
        return self.started + share * self.seconds

    def _try_settings(self, original: _Model, best: _Model) -> None:
        """Measure what a session can do and a file cannot."""
        if tuple(self.options.providers) == (CPU,) and time.monotonic() <= self._until(_FOR_SETTINGS):
            self.tuning.recipe = measured_recipe(
                original.path,
                best.path,
                self.inputs,
                self.budget,
                threads=self.threads,
                has_open_sizes=any(self.tuning.sizes),
                deadline=self._until(_FOR_SETTINGS),
                token=self.token,
            )

    def _tried(self, name: str, choices: Choices, best: _Model) -> _Model:
        """The better one of the best so far and another one."""
        other = self._made(choices)
        if other is None or other.digest in self.refuted:
            return best
        self.refuted.add(other.digest)  # as the best one so far, too: nothing is timed twice
        end = min(self._until(1.0), time.monotonic() + _FOR_ONE * self.seconds)
        speeds = self._compared(best, other, end, rounds=1)
        if speeds is None:
            return best
        step = Step(name, speeds, kept=False)
        if step.gain > 1:  # what does not seem to gain in one process is not worth more of them
            step = replace(step, speeds=self._compared(best, other, end) or speeds)
        kept = step.gain > 1 + HYSTERESIS and step.least > 1 and all(speed.high >= SLOWER for speed in step.speeds)
        self.tuning.steps.append(replace(step, kept=kept))
        return other if kept else best

    def _against(self, original: _Model, best: _Model) -> None:
        """Compare the best with the original; what is slower is not taken."""
        simpler = [structs.replace(best.choices, level=1), original.choices]
        while True:
            speeds = self._compared(original, best, self._until(1.0))
            self.tuning.against_original = speeds
            self.tuning.choices = best.choices
            if speeds is None or all(speed.high >= SLOWER for speed in speeds) or best.digest == original.digest:
                return
            other = self._made(simpler.pop(0)) if simpler else None
            if other is None:
                return
            self.tuning.steps.append(Step("the original was faster: less is done", speeds, kept=True))
            best = other

    def _compared(
        self, first: _Model, second: _Model, end: float, rounds: int | None = None
    ) -> tuple[Speed, ...] | None:
        budget = self.budget if rounds is None else replace(self.budget, rounds=rounds)
        return compare(first.path, second.path, self.inputs, budget, deadline=end, token=self.token)

    def _made(self, choices: Choices, *observers: Observer) -> _Model | None:
        """The model with some choices, or None where that fails."""
        path = self.folder / f"{self.count}" / "model.onnx"
        self.count += 1
        path.parent.mkdir()
        options = choices.applied_to(self.options)
        try:
            run = new_optimization(self.source, options, observers=observers, cancellation=self.token)
            result = run.run(verify=False, save_to=path)
        except OptimizationCancelled:
            raise
        except OrtoptError:
            return None
        return _Model(choices, path, _digest(path.parent), result)

    def _draw(self, original: _Model, inputs: Mapping[str, np.ndarray[Any, Any]] | None) -> None:
        """Write inputs that the original runs on, at each of the sizes."""
        options, runs = self.options, attempts(original.path, self.budget, self.token)
        found = stored_inputs(
            original.result.model,
            self.folder / "inputs",
            runs,
            sizes=options.dims,
            expected=options.dim_hints,
            given=inputs,
        )
        self.inputs += [stored.folder for stored in found]
        self.tuning.inputs = tuple(found)


def _digest(folder: Path) -> str:
    """The hash of all files of a model."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(os.fsencode(path.name))
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()

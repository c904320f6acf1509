"""Measures forms on this machine: each beside what it stands for, in turns, again and again until time is over."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import onnx

from ortopt.analysis.providers import CPU
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.forms.entry import Entry, Given
from ortopt.measurement.pairs import BRIEF, Pair, Series, sample
from ortopt.verification.input_sets import store_inputs

SECONDS: Final = 180.0
"""How long measuring all forms takes, about, unless the caller says otherwise."""

_ROUNDS: Final = 3
"""How often each pair is timed, at least, if time allows: each time in another process, which opens the other first."""

_OVERHEAD: Final = 0.03
"""Seconds that it takes to open a pair."""

_CHUNK: Final = 12
"""Pairs in a process: few enough to say soon what was measured."""

_MAX_PAIRS: Final = 300
_MIN_SECONDS, _MAX_SECONDS = 0.01, 1.0


@dataclass(slots=True)
class Case(Series):
    """A form at some sizes, and what was measured of it: what it stands for over itself.

    Attributes:
        entry: The form.
        given: The sizes.
    """

    entry: Entry
    given: Given


@dataclass(slots=True)
class Measurement:
    """What was measured.

    Attributes:
        cases: Each form at each of its sizes.
        provider: The execution provider's full name.
        threads: Threads within an op.
        stopped: Whether it was interrupted.
        seconds: How long it took.
    """

    cases: list[Case]
    provider: str
    threads: int
    stopped: bool = False
    seconds: float = 0.0


def measure(
    entries: Iterable[Entry],
    *,
    seconds: float = SECONDS,
    threads: int = 1,
    provider: str = CPU,
    interpreter: str | None = None,
    report: Callable[[Sequence[Case]], None] | None = None,
    token: CancellationToken = NEVER,
) -> Measurement:
    """Measure forms.

    Args:
        entries: The forms.
        seconds: When no further process is started.
        threads: Threads within an op.
        provider: The execution provider's full name.
        interpreter: The Python that has numpy and the ONNX Runtime to measure; None is this one.
        report: Called with the cases of a form when each has been measured for the first time.
        token: Ends measuring; what was measured until then is kept.

    Returns:
        What was measured.
    """
    cases = [Case(entry, given) for entry in entries for given in entry.cases]
    measurement = Measurement(cases, provider, threads)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ortopt-costs-") as folder:
        share = _share(seconds, len(cases))
        budget = replace(
            BRIEF, providers=(provider,), threads=threads, seconds=share, repeat=_MAX_PAIRS, interpreter=interpreter
        )
        rounds = _Rounds(cases, Path(folder), budget, started + seconds, report, token)
        try:
            rounds.run()
        except OptimizationCancelled:
            measurement.stopped = True
    measurement.seconds = time.monotonic() - started
    return measurement


def _share(seconds: float, count: int) -> float:
    """Seconds of timed calls that a pair has in one process."""
    return min(max(seconds / _ROUNDS / max(count, 1) - _OVERHEAD, _MIN_SECONDS), _MAX_SECONDS)


@dataclass(slots=True)
class _Rounds:
    cases: Sequence[Case]
    folder: Path
    budget: MeasurementBudget
    deadline: float
    report: Callable[[Sequence[Case]], None] | None
    token: CancellationToken
    pairs: dict[int, Pair] = field(default_factory=dict)

    def run(self) -> None:
        """Time all pairs, then again those that are not clear, until time is over."""
        number = 0
        while time.monotonic() < self.deadline:
            left = [place for place, case in enumerate(self.cases) if number < 2 or not case.is_clear]
            if not left:
                return
            for start in range(0, len(left), _CHUNK):
                if time.monotonic() >= self.deadline:
                    return
                self._measure(left[start : start + _CHUNK], swapped=number % 2 == 1)
            number += 1

    def _measure(self, places: Sequence[int], *, swapped: bool) -> None:
        first = [place for place in places if not (self.cases[place].ratios or self.cases[place].error)]
        taken = sample([self._pair(place) for place in places], self.budget, swapped=swapped, token=self.token)
        if len(places) > 1 and all(one.error for one in taken):  # the process died of one of them
            for place in places:
                self._measure([place], swapped=swapped)
            return
        for place, one in zip(places, taken, strict=True):
            self.cases[place].add(one)
        self._say(first)

    def _say(self, places: Sequence[int]) -> None:
        """Tell of the forms of which the last case has now been measured."""
        for entry in dict.fromkeys(id(self.cases[place].entry) for place in places):
            own = [case for case in self.cases if id(case.entry) == entry]
            if self.report is not None and all(case.ratios or case.error for case in own):
                self.report(own)

    def _pair(self, place: int) -> Pair:
        """The models and inputs of a case, written when they are first asked for."""
        if place not in self.pairs:
            case = self.cases[place]
            forms = case.entry.at(case.given)
            before, after, inputs = (self.folder / f"{place}.{end}" for end in ("before.onnx", "after.onnx", "inputs"))
            for path, model in zip((before, after), forms.models(), strict=True):
                onnx.save(model, path)
            store_inputs(forms.inputs, inputs)
            self.pairs[place] = Pair(before, after, (inputs,), case.entry.as_loaded, case.entry.cold)
        return self.pairs[place]

"""Inputs to time a model with: at representative sizes, such as the original runs on.

All that measures takes them from here: `bench`, `optimize --tune` and `--profile`, `check --latency`, `run` where it
draws. Where a model does not run at a representative size, because it refuses it or memory does not do, another one is
tried, and what is measured says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.node_sizes import IMAGE, Extent, representative_sizes
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError, UsageError
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.in_turns import Failure, Version, attempt
from ortopt.measurement.words import sizes_in_words
from ortopt.terminal_text import one_line
from ortopt.verification.draws import Draw, initial_draws
from ortopt.verification.input_sets import store_inputs
from ortopt.verification.inputs import Interface

UNFIT: Final = frozenset({"ValueError", "InvalidArgument"})
"""Classes of the errors that a session raises where an input is missing or does not fit."""

HINT: Final = "on drawn inputs: --inputs gives it others"

_AT_EACH_SIZE: Final = (Draw(), Draw(integers="binary"), Draw(integers="one"))
_OTHER_IMAGES: Final = (256, 320, 384, 512, 640, 112, 64, 32)
_FRACTIONS: Final = (2, 4, 8)
_FAILING_FOR: Final = 60.0  # seconds of attempts that fail before no more are made at other sizes


class Candidate(Struct, frozen=True):
    """A way to draw inputs for a measurement.

    Attributes:
        sizes: Sizes of the open dimensions, by the symbol's name, or as ``x[2]`` where they have none.
        how: How numbers are drawn, and other dimensions.
        wanted: The representative sizes that these stand for.
    """

    sizes: Mapping[str, int]
    how: Draw
    wanted: Mapping[str, int]

    def draw(self, interface: Interface, seed: int = 0) -> dict[str, Any]:
        """The inputs.

        Raises:
            UsageError: They cannot be drawn, or would be enormous.
        """
        return interface.draw(seed=seed, sizes=self.sizes, how=self.how)

    def drawn_sizes(self, interface: Interface) -> dict[str, int]:
        """The sizes of all open dimensions with a name, as they are drawn, without those that are sums of others."""
        drawn = interface.sizes(self.sizes, self.how)
        return {**self.sizes, **{name: drawn[name] for name in interface.free_symbols if name not in self.sizes}}


class StoredInputs(Struct, frozen=True):
    """Inputs in a folder.

    Attributes:
        folder: Where `ortopt.verification.input_sets` has stored them.
        sizes: The sizes of the open dimensions; empty where the caller gave the inputs.
        inputs: Name, dtype and shape of each, as data that json can write.
        fallback: Why these are no representative sizes; empty where they are, and where the caller gave the inputs.
    """

    folder: Path
    sizes: Mapping[str, int]
    inputs: tuple[Mapping[str, Any], ...]
    fallback: str = ""

    def as_dict(self) -> dict[str, Any]:
        """What was measured with, as data that json can write."""
        return {"sizes": dict(self.sizes), "inputs": list(self.inputs), "fallback": self.fallback or None}


Attempt = Callable[[Path], Failure | None]
"""Why a model does not run on stored inputs; None where it does."""


def attempts(original: Path, budget: MeasurementBudget, token: CancellationToken = NEVER) -> Attempt:
    """Runs a model once, in a process of its own.

    Args:
        original: The model's file.
        budget: Where, and how long it may take.
        token: Cancellation token.
    """
    return lambda folder: attempt(Version(0, original), folder, budget, token)


def stored_inputs(
    model: ir.Model,
    folder: Path,
    runs: Attempt,
    *,
    sizes: Mapping[str, int],
    expected: Mapping[str, Extent] | None = None,
    given: Mapping[str, Any] | None = None,
    seed: int = 0,
    label: str = "the original",
) -> list[StoredInputs]:
    """Inputs that a model runs on, one for each of its representative sizes.

    Args:
        model: The model, whose inputs have the sizes that the caller wants instead of those of the file.
        folder: A folder for them.
        runs: Runs the model on stored inputs.
        sizes: Sizes that the caller has chosen.
        expected: Sizes that the caller expects; of a range both ends.
        given: Inputs that are used instead.
        seed: Seed of what is drawn.
        label: The model, for people.

    Returns:
        At least one.

    Raises:
        UsageError: What is given does not fit the model, or cannot be stored.
        InvalidModelError: It runs on no inputs.
    """
    search = _Search(Interface(model), folder, runs, seed, label)
    if given is not None:
        return [search.given(dict(given))]
    places, others = candidates(model, sizes, expected)
    for place in places:
        search.at(place)
    if not search.found:
        search.at(others)
    if not search.found:
        raise search.error(HINT)
    return search.explained()


def candidates(
    model: ir.Model, sizes: Mapping[str, int], expected: Mapping[str, Extent] | None = None
) -> tuple[list[list[Candidate]], list[Candidate]]:
    """Ways to draw inputs, the most representative first.

    Args:
        model: The model.
        sizes: Sizes that the caller has chosen; they stay.
        expected: Sizes that the caller expects.

    Returns:
        For each of the representative sizes ways to draw at these, then at others in their place: images of other
        usual sizes, else halves, quarters and eighths; and ways for where none of these runs, such as verification
        draws.
    """
    fixed = {*sizes, *(expected or {})}
    places = []
    for wanted in representative_sizes(model, sizes, expected):
        ways = [Candidate(wanted, how, wanted) for how in _AT_EACH_SIZE]
        ways += [Candidate(other, Draw(), wanted) for other in _instead_of(wanted, fixed)]
        places.append(ways)
    first = places[0][0].wanted
    return places, [Candidate(dict(sizes), how, first) for how in initial_draws()]


def _instead_of(wanted: Mapping[str, int], fixed: set[str]) -> Iterator[dict[str, int]]:
    """Other sizes, where a model does not run at the representative ones."""
    free = {name: size for name, size in wanted.items() if name not in fixed and size > 1}
    images = [name for name, size in free.items() if size == IMAGE]
    if images:
        yield from ({**wanted, **dict.fromkeys(images, size)} for size in _OTHER_IMAGES)
    elif free:
        yield from ({**wanted, **{name: max(size // by, 1) for name, size in free.items()}} for by in _FRACTIONS)


class _Search:
    """Tries ways to draw until the model runs.

    Args:
        interface: The model's inputs.
        folder: A folder for what is drawn.
        runs: Runs the model.
        seed: Seed of what is drawn.
        label: The model, for people.
    """

    def __init__(self, interface: Interface, folder: Path, runs: Attempt, seed: int, label: str) -> None:
        self.found: list[StoredInputs] = []
        self._interface = interface
        self._folder = folder
        self._runs = runs
        self._seed = seed
        self._label = label
        self._first = ""
        self._left_out: list[str] = []
        self._count = 0

    def given(self, inputs: dict[str, Any]) -> StoredInputs:
        """The caller's inputs."""
        folder, failure = self._stored(inputs)
        if failure is not None:
            if failure.kind in UNFIT:
                raise UsageError(f"the inputs do not fit {self._label}: {failure.reason}")
            raise InvalidModelError(f"{self._label} cannot be run: {failure.reason}")
        return StoredInputs(folder, {}, described(inputs))

    def at(self, ways: Sequence[Candidate]) -> None:
        """Add the first of some ways that the model runs with."""
        started, reason, impossible = time.monotonic(), "", None
        for way in ways:
            late = time.monotonic() - started > _FAILING_FOR and reason
            if late or way.sizes == impossible:
                continue
            try:
                inputs = way.draw(self._interface, self._seed)
            except UsageError as error:
                reason, impossible = reason or str(error), way.sizes
                continue
            folder, failure = self._stored(inputs)
            if failure is None:
                self._add(way, StoredInputs(folder, way.drawn_sizes(self._interface), described(inputs)), reason)
                return
            reason = reason or failure.reason
            self._first = self._first or failure.reason
            if not failure.opens:
                if failure.kind:
                    raise self.error("")
                impossible = way.sizes  # the process died or took too long, and would again
        self._first = self._first or reason
        self._left_out.append(self._failed(ways[0], reason))

    def _add(self, way: Candidate, stored: StoredInputs, reason: str) -> None:
        failed = self._failed(way, reason) if way.sizes != way.wanted and way.wanted else ""
        if all(stored.inputs != other.inputs for other in self.found):
            self.found.append(StoredInputs(stored.folder, stored.sizes, stored.inputs, failed))
        elif failed:
            self._left_out.append(failed)

    def _failed(self, way: Candidate, reason: str) -> str:
        at = f" at {sizes_in_words(way.wanted)}" if way.wanted else ""
        return f"it does not run{at}: {one_line(reason or self._first)}"

    def explained(self) -> list[StoredInputs]:
        """What was found; the last of them says which of the representative sizes nothing stands for."""
        last = self.found[-1]
        notes = "; ".join(dict.fromkeys(filter(None, (last.fallback, *self._left_out))))
        return [*self.found[:-1], StoredInputs(last.folder, last.sizes, last.inputs, notes)]

    def _stored(self, inputs: dict[str, Any]) -> tuple[Path, Failure | None]:
        for name, value in inputs.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufcOU":
                raise UsageError(f"a measurement takes arrays of types that numpy has: input {name!r} is none")
        folder = self._folder / f"{self._count}"
        self._count += 1
        folder.parent.mkdir(parents=True, exist_ok=True)
        store_inputs(inputs, folder)
        return folder, self._runs(folder)

    def error(self, hint: str) -> InvalidModelError:
        """Why the model cannot be measured."""
        return InvalidModelError(f"{self._label} cannot be run: {self._first}{f' ({hint})' if hint else ''}")


def described(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Inputs as data that json can write."""
    return tuple(
        {"name": name, "dtype": "string" if value.dtype.kind in "OU" else str(value.dtype), "shape": list(value.shape)}
        for name, value in inputs.items()
    )

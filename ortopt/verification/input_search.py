"""The search for input sets on which an original runs: a model does not say which inputs it accepts.

Input sets without elements: one symbol is 0, and with it those that are never another size.

A symbol that must be as large as another one, or as large as something in the graph, is not 0 alone: some kernels do
not notice. A Concat leaves parts without elements out, whatever their other sizes are, and what they would fill is
memory that nobody has written. So a symbol is 0 alone only where it may be another size alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from ortopt.errors import UsageError
from ortopt.terminal_text import quoted
from ortopt.verification.draws import Draw, additional_draws, initial_draws, thorough_draws
from ortopt.verification.input_sets import InputSet
from ortopt.verification.inputs import Inputs, Interface
from ortopt.verification.numbers import FAR, FloatRange
from ortopt.verification.process import Deadline, Worker, WorkerError

Sizes = Mapping[str, int]
"""The sizes of all symbols of an input set."""


@dataclass(eq=False)
class EmptySets:
    """Tries input sets in which symbols are 0.

    Attributes:
        interface: What the model takes.
        attempt: Draws a set and runs it; the text says what is particular about it.
        given: Sizes of symbols that the caller has chosen.
        ran: The sizes of sets on which the model has run.
        seconds: For the symbols behind the first.
        nonempty: Symbols that are not 0.
    """

    interface: Interface
    attempt: Callable[[Worker, Draw, str], InputSet]
    given: Mapping[str, int]
    ran: Sequence[Sizes]
    seconds: float
    nonempty: Collection[str] = ()

    def __post_init__(self) -> None:
        self._nonempty = frozenset(self.nonempty)
        self._tried: set[tuple[str, ...]] = set()

    def run(self, worker: Worker) -> list[InputSet]:
        """The sets that the model takes: of the first symbol, and as long as that costs nothing of each other one.

        A model that does not take the first is asked for the others all the same: failing is quick.
        """
        sets: list[InputSet] = []
        begun = time.monotonic()
        for symbol in self.interface.free_symbols:
            if symbol in self.given or symbol in self._nonempty:
                continue
            with contextlib.suppress(WorkerError):
                sets += self._of(worker, symbol)
            if worker.dead or time.monotonic() - begun > self.seconds:
                break
        return sets

    def _of(self, worker: Worker, symbol: str) -> list[InputSet]:
        """The set in which a symbol is 0, or, where it is never so alone, in which those like it are 0, too."""
        alone = self._empty(worker, (symbol,))
        if self._is_free(worker, symbol):
            return [alone]
        alike = tuple(sorted(self._like(symbol)))
        if len(alike) == 1 or alike in self._tried or not self._nonempty.isdisjoint(alike):
            return []
        self._tried.add(alike)
        return [self._empty(worker, alike)]

    def _empty(self, worker: Worker, symbols: tuple[str, ...]) -> InputSet:
        label = " and ".join(f"{quoted(symbol)} is 0" for symbol in symbols)
        input_set = self.attempt(worker, Draw(sizes=tuple((symbol, 0) for symbol in symbols)), label)
        input_set.extreme = True  # where sizes depend on each other in another way, kernels may read what nobody wrote
        return input_set

    def _like(self, symbol: str) -> list[str]:
        """The symbols, itself among them, that were as large as a symbol in all sets on which the model has run."""
        symbols = (other for other in self.interface.free_symbols if other not in self.given)
        return [other for other in symbols if all(sizes[other] == sizes[symbol] for sizes in self.ran)]

    def _is_free(self, worker: Worker, symbol: str) -> bool:
        """Whether a symbol may have several sizes, and others than those of all other symbols."""
        distinct = any(
            sizes[symbol] not in [size for other, size in sizes.items() if other != symbol] for sizes in self.ran
        )
        if distinct and len({sizes[symbol] for sizes in self.ran}) > 1:
            return True
        natural = self.interface.sizes(self.given, Draw())
        larger = next(size for size in range(natural[symbol] + 1, 1 << 30) if size not in natural.values())
        for size in (larger, 2 * natural[symbol]):  # the second one for sizes that something must divide
            try:
                self.attempt(worker, Draw(sizes=((symbol, size),)), "")
            except WorkerError:
                if worker.dead:
                    raise
            else:
                return True
        return False


_SECOND_SET_WITHIN: Final = 3.0  # seconds that the first may take for another set, of other sizes, to be run too
_TRIES_FOR_A_SECOND_SET: Final = 3
_ENOUGH: Final = 2  # sets that say something; one more where a branch hangs on an input
_MAX_POOR: Final = 3  # sets whose outputs say nothing
MAX_CRASHES: Final = 5
"""Processes that input sets may end."""

_LARGE_ENOUGH: Final = 224  # what is tried where a process has ended: sizes were too small, most likely
_FAILING_FOR: Final = 10.0  # seconds of attempts that fail before no more are made
_FOR_NOTHING: Final = 30.0  # seconds for an input set without elements
_FURTHER_SECONDS: Final = 0.03  # that further sets, which show what the first may hide, may always take
_THOROUGH_SECONDS: Final = 60.0  # that the original may take for all further sets where many are wanted
_KINDS: Final = {"nan": "NaN is among the floats", "inf": "infinities are among the floats"}
_FURTHER_SHARE: Final = 0.25  # of the time that the original took until then, if that is more


@dataclass(eq=False)
class Search:
    """Tries input sets until enough are found; it goes on in another process where one has been ended by a set.

    Attributes:
        interface: What the model takes.
        draw: Draws inputs.
        attempt: Runs them in a process; the text says what is particular about them.
        fine: Whether nothing is computed in less than single precision, which large numbers would overflow.
        given: Sizes of symbols that the caller has chosen.
        nonempty: Symbols that are not 0.
        thorough: Whether many more sets are wanted, however long that takes.
        error: Why the first set that failed did.
        crashes: How many processes have been ended by a set; another `run`, in a new one, may find more.
    """

    interface: Interface
    draw: Callable[[Draw], Inputs]
    attempt: Callable[[Worker, Inputs, str], InputSet]
    _: KW_ONLY
    fine: bool
    given: Mapping[str, int]
    nonempty: Collection[str] = ()
    thorough: bool = False

    def __post_init__(self) -> None:
        self.error: WorkerError | UsageError | None = None
        self.crashes = 0
        self._good: list[InputSet] = []
        self._poor: list[InputSet] = []
        self._ran: list[dict[str, int]] = []
        self._seen: set[tuple[Any, ...]] = set()
        self._tries = 0
        self._wanted = _ENOUGH
        self._first = Draw()
        self._last_seconds = 0.0
        self._begun = time.monotonic()

    def run(self, worker: Worker) -> list[InputSet]:
        """Input sets on which the original runs.

        The first that works, one of other sizes, and, if the model takes them, one of no elements and, if it is quick,
        some of `additional_draws`.

        Args:
            worker: Where the original has been loaded.

        Raises:
            WorkerError: None works; or a set has ended the process.
            UsageError: None can be drawn.
        """
        loaded = worker.seconds
        for how in initial_draws():
            if self.crashes and max(how.size or 0, how.length or 0) < _LARGE_ENOUGH:
                continue
            if not self._try(worker, how):
                break
            if self._good and self._wanted == _ENOUGH and self.interface.has_conditions:
                self._wanted += 1
                if not self._try(worker, dataclasses.replace(how, conditions_hold=False)):
                    break
        if not self._good and not self._poor:
            raise self.error or WorkerError("no inputs")
        if not self._good and not self.crashes:
            self._try_others(worker)
        some = self._good or self._poor[:1]
        sets = list(some)
        if self.crashes:  # whatever else is tried may end the process again
            return sets
        if self._last_seconds < _SECOND_SET_WITHIN:
            sets += self._try_empty(worker)
        if not worker.dead:
            budget = max(_FURTHER_SECONDS, _FURTHER_SHARE * (loaded + sum(input_set.seconds for input_set in some)))
            pace = min(input_set.seconds / input_set.elements for input_set in some)
            sets += self._try_further(worker, budget, pace, some[0].plain)
        return sets

    def _try_others(self, worker: Worker) -> None:
        """Numbers of other kinds, where what was tried gives hardly any: of a logarithm, say, or of a threshold."""
        floats: tuple[FloatRange, ...] = ("positive", "unit", "wide")
        for kind in floats if self._last_seconds < _SECOND_SET_WITHIN else floats[:1]:
            how = dataclasses.replace(self._first, floats=kind, octaves=FAR)
            try:
                drawn = self._fresh(how)
                if drawn is not None:
                    self._add(self.attempt(worker, drawn, ""), how)
            except UsageError:
                continue
            except WorkerError as error:
                if error.died or error.late:
                    return
            if self._good:
                return

    def _add(self, input_set: InputSet, how: Draw) -> None:
        input_set.extreme = how.is_extreme
        self._ran.append(self.interface.sizes(self.given, how))
        if not self._good and (input_set.says_something or not self._poor):
            self._first = how
        (self._good if input_set.says_something else self._poor).append(input_set)

    def _try(self, worker: Worker, how: Draw) -> bool:
        """Draw and run a set unless it has been; whether others are worth trying."""
        try:
            drawn = self._fresh(how)
        except UsageError as error:
            self.error = self.error or error
            return True
        if drawn is None:
            return True
        if self._good and self._tries >= _TRIES_FOR_A_SECOND_SET:
            return False
        if self.error is not None and time.monotonic() - self._begun > _FAILING_FOR:
            return False
        self._tries += bool(self._good)
        start = time.monotonic()
        try:
            input_set = self.attempt(worker, drawn, "")
        except WorkerError as error:
            if not isinstance(self.error, WorkerError):
                self.error = error
            if error.died or error.late:
                self.crashes += not error.late
                raise
            return True
        self._add(input_set, how)
        self._last_seconds = time.monotonic() - start
        if len(self._good) == self._wanted or (self._good and self._last_seconds >= _SECOND_SET_WITHIN):
            return False
        return len(self._poor) <= _MAX_POOR

    def _try_further(self, worker: Worker, budget: float, pace: float, plain: tuple[bool, ...]) -> list[InputSet]:
        """Other input sets, as far as the model takes them and gives plain numbers for them.

        Args:
            worker: Where the original runs.
            budget: Seconds that all may take.
            pace: Seconds that each element of the inputs takes.
            plain: Which of the outputs hold plain numbers for natural inputs.
        """
        sets: list[InputSet] = []
        interface = self.interface
        symbols = len(interface.symbols)
        ways = list(
            additional_draws(
                fine=self.fine,
                symbols=symbols,
                floating=interface.has_floats,
                integers=interface.has_wide_integers,
                free=self.fine and interface.has_free_integers,
            )
        )
        if self.thorough:
            budget = _THOROUGH_SECONDS
            ways += thorough_draws(fine=self.fine, symbols=symbols)
        while ways:
            way = ways.pop(0)
            if sets and way.size is not None and not self.thorough:
                break
            try:
                input_set = self._further_set(worker, way, budget, pace)
            except UsageError:
                continue
            except WorkerError as error:
                if error.died or error.late:
                    break
                input_set = None
                if way.milder is not None:
                    ways.insert(0, way.milder)
            if input_set is None:
                continue
            budget -= input_set.seconds
            if way.floats in ("nan", "inf") or not any(
                is_plain and not now for is_plain, now in zip(plain, input_set.plain, strict=False)
            ):
                sets.append(input_set)
            elif way.milder is not None:
                ways.insert(0, way.milder)
        return sets

    def _further_set(self, worker: Worker, way: Draw, budget: float, pace: float) -> InputSet | None:
        """One of them; None if it takes too long, or has been tried."""
        interface = self.interface
        sized = way.size is not None or way.odd is not None
        first = self._first
        integers = first.integers if way.integers == "natural" else way.integers
        how = way if sized else dataclasses.replace(way, size=first.size, length=first.length, integers=integers)
        if pace * interface.elements(self.given, how) > budget:
            return None
        drawn = self._fresh(how)
        if drawn is None:
            return None
        sizes = interface.sizes(self.given, how).items()
        parts = [f"{quoted(name)} is {size}" for name, size in sizes]
        parts += [_KINDS[way.floats]] if way.floats in _KINDS else []
        parts += ["integers are at the bounds of their dtype"] if way.integers == "extreme" else []
        input_set = self.attempt(worker, drawn, " and ".join(parts))
        input_set.signs = way.floats != "coarse"
        input_set.extreme = way.is_extreme
        input_set.special = way.floats in _KINDS
        return input_set

    def _try_empty(self, worker: Worker) -> list[InputSet]:
        """Input sets with dimensions of 0, as far as the model takes them."""
        if not self.interface.takes_empty:
            return []
        deadline, worker.deadline = worker.deadline, Deadline(min(worker.deadline.left, _FOR_NOTHING))
        try:
            sets = EmptySets(
                self.interface, self._attempt_drawn, self.given, self._ran, _FURTHER_SECONDS, self.nonempty
            )
            return sets.run(worker)
        finally:
            worker.deadline = deadline

    def _attempt_drawn(self, worker: Worker, how: Draw, label: str) -> InputSet:
        return self.attempt(worker, self.draw(how), label)

    def _fresh(self, how: Draw) -> Inputs | None:
        """Inputs that have not been tried, or None."""
        drawn = self.draw(how)
        contents = tuple(_digest(value) for value in drawn.values())
        if contents in self._seen:
            return None
        self._seen.add(contents)
        return drawn


def _digest(value: Any) -> Any:
    """A key by which drawn inputs are compared."""
    if isinstance(value, list):
        return tuple(_digest(item) for item in value)
    data = repr(value.tolist()).encode() if value.dtype.kind == "O" else value.tobytes()
    return value.shape, zlib.crc32(data)

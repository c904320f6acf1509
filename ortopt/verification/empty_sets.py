"""Input sets without elements: one symbol is 0, and with it those that are never another size.

A symbol that must be as large as another one, or as large as something in the graph, is not 0 alone: some kernels do
not notice. A Concat leaves parts without elements out, whatever their other sizes are, and what they would fill is
memory that nobody has written. So a symbol is 0 alone only where it may be another size alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from ortopt.terminal_text import quoted
from ortopt.verification.draws import Draw
from ortopt.verification.input_sets import InputSet
from ortopt.verification.inputs import Interface
from ortopt.verification.process import Worker, WorkerError

Sizes = Mapping[str, int]
"""The sizes of all symbols of an input set."""


class EmptySets:
    """Tries input sets in which symbols are 0.

    Args:
        interface: What the model takes.
        attempt: Draws a set and runs it; the text says what is particular about it.
        given: Sizes of symbols that the caller has chosen.
        ran: The sizes of sets on which the model has run.
        seconds: For the symbols behind the first.
        nonempty: Symbols that are not 0.
    """

    def __init__(
        self,
        interface: Interface,
        attempt: Callable[[Worker, Draw, str], InputSet],
        given: Mapping[str, int],
        ran: Sequence[Sizes],
        seconds: float,
        nonempty: Collection[str] = (),
    ) -> None:
        self._interface = interface
        self._attempt = attempt
        self._given = given
        self._ran = ran
        self._seconds = seconds
        self._nonempty = frozenset(nonempty)
        self._tried: set[tuple[str, ...]] = set()

    def run(self, worker: Worker) -> list[InputSet]:
        """The sets that the model takes: of the first symbol, and as long as that costs nothing of each other one.

        A model that does not take the first is asked for the others all the same: failing is quick.
        """
        sets: list[InputSet] = []
        begun = time.monotonic()
        for symbol in self._interface.free_symbols:
            if symbol in self._given or symbol in self._nonempty:
                continue
            with contextlib.suppress(WorkerError):
                sets += self._of(worker, symbol)
            if worker.dead or time.monotonic() - begun > self._seconds:
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
        input_set = self._attempt(worker, Draw(sizes=tuple((symbol, 0) for symbol in symbols)), label)
        input_set.extreme = True  # where sizes depend on each other in another way, kernels may read what nobody wrote
        return input_set

    def _like(self, symbol: str) -> list[str]:
        """The symbols, itself among them, that were as large as a symbol in all sets on which the model has run."""
        symbols = (other for other in self._interface.free_symbols if other not in self._given)
        return [other for other in symbols if all(sizes[other] == sizes[symbol] for sizes in self._ran)]

    def _is_free(self, worker: Worker, symbol: str) -> bool:
        """Whether a symbol may have several sizes, and others than those of all other symbols."""
        distinct = any(
            sizes[symbol] not in [size for other, size in sizes.items() if other != symbol] for sizes in self._ran
        )
        if distinct and len({sizes[symbol] for sizes in self._ran}) > 1:
            return True
        natural = self._interface.sizes(self._given, Draw())
        larger = next(size for size in range(natural[symbol] + 1, 1 << 30) if size not in natural.values())
        for size in (larger, 2 * natural[symbol]):  # the second one for sizes that something must divide
            try:
                self._attempt(worker, Draw(sizes=((symbol, size),)), "")
            except WorkerError:
                if worker.dead:
                    raise
            else:
                return True
        return False

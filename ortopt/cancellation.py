"""A token that any thread may set to stop a run, with an optional deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final, TypeVar

from ortopt.errors import OptimizationCancelled

T = TypeVar("T")

BETWEEN_CHECKS: Final = 64
"""How many items `CancellationToken.checked` lets pass: at most a few milliseconds of work."""


BETWEEN_LOOKS: Final = 0.02
"""Seconds that who waits for another process, or a thread, lets pass before it asks again."""


class DeadlinePassed(OptimizationCancelled):
    """The deadline of a run has passed: the best so far is what it returns."""


class DeadlineForced(DeadlinePassed):
    """The deadline has passed long ago, and the run had to be stopped in the midst of an edit: its graph is torn."""


class CancellationToken:
    """Stops a run from any thread.

    Args:
        timeout: Seconds until the deadline, from now; None is none. A passed deadline is no error: the run returns
            what it has reached.
    """

    def __init__(self, timeout: float | None = None) -> None:
        self._event = threading.Event()
        self.deadline = None if timeout is None else time.monotonic() + timeout

    def with_timeout(self, timeout: float | None) -> CancellationToken:
        """A token that `cancel` of this one stops too, with a deadline of its own.

        Args:
            timeout: Seconds until its deadline, from now; None is none.
        """
        token = CancellationToken(timeout)
        token._event = self._event
        return token

    def cancel(self) -> None:
        """Ask the run to stop at its next rewrite; it raises `OptimizationCancelled`."""
        self._event.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return self._event.is_set()

    @property
    def left(self) -> float | None:
        """Seconds until the deadline, never less than a millisecond; None where there is none."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.001)

    def checked(self, items: Iterable[T]) -> Iterator[T]:
        """Some items, with a `check` now and then: for loops over all nodes of a graph.

        Raises:
            OptimizationCancelled: As `check` does.
        """
        return chain.from_iterable(self._stretches(_once(items)))

    def batched(self, items: Iterable[T]) -> Iterator[list[T]]:
        """Some items, as many at a time as may be handled in one go, with a `check` before each time.

        Raises:
            OptimizationCancelled: As `check` does.
        """
        left = _once(items)
        while portion := list(islice(left, BETWEEN_CHECKS)):
            self.check()
            yield portion

    def _stretches(self, items: Iterator[T]) -> Iterator[Iterable[T]]:
        """The items in stretches; none is taken before its turn, for what is iterated over may change meanwhile."""
        for first in items:
            self.check()
            yield (first,)
            yield islice(items, BETWEEN_CHECKS - 1)

    def check(self) -> None:
        """Go on only if nobody has asked to stop.

        Raises:
            DeadlinePassed: If the deadline has passed.
            OptimizationCancelled: If `cancel` has been called.
        """
        if self._event.is_set():
            raise OptimizationCancelled
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise DeadlinePassed("the deadline has passed")


def _once(items: Iterable[T]) -> Iterator[T]:
    """An iterator that goes on wherever it is taken up; those of onnx-ir begin again each time."""
    return chain(items)


class _Never(CancellationToken):
    """The token of those who were given none."""

    def cancel(self) -> None:
        raise ValueError("this token is everybody's: nobody may set it")

    def checked(self, items: Iterable[T]) -> Iterator[T]:
        return iter(items)

    def check(self) -> None:
        return


NEVER: Final[CancellationToken] = _Never()
"""What is asked where nobody has given a token, or where what has been begun must come to its end."""

__all__ = ["BETWEEN_CHECKS", "BETWEEN_LOOKS", "NEVER", "CancellationToken", "DeadlineForced", "DeadlinePassed"]

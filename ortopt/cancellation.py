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
"""Number of items between two checks in `CancellationToken.checked`: at most a few milliseconds of work."""

BETWEEN_LOOKS: Final = 0.02
"""Seconds between two checks of the token while another process or thread is waited for."""


class DeadlinePassed(OptimizationCancelled):
    """The deadline of a run has passed: it returns the best result so far."""


class DeadlineForced(DeadlinePassed):
    """The deadline passed some time ago, and the run was interrupted in mid-edit: its graph is corrupted."""


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
        """A token that is cancelled with this one, but has a deadline of its own.

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
        """The items, with a `check` now and then: for loops over all nodes of a graph.

        Raises:
            OptimizationCancelled: As `check` does.
        """
        return chain.from_iterable(self._checked_runs(_once(items)))

    def batched(self, items: Iterable[T]) -> Iterator[list[T]]:
        """The items in batches, with a `check` before each batch.

        Raises:
            OptimizationCancelled: As `check` does.
        """
        left = _once(items)
        while batch := list(islice(left, BETWEEN_CHECKS)):
            self.check()
            yield batch

    def _checked_runs(self, items: Iterator[T]) -> Iterator[Iterable[T]]:
        """The items in runs; none is taken ahead of time, for the collection may change during the iteration."""
        for first in items:
            self.check()
            yield (first,)
            yield islice(items, BETWEEN_CHECKS - 1)

    def check(self) -> None:
        """Raise if the run is to stop.

        Raises:
            DeadlinePassed: If the deadline has passed.
            OptimizationCancelled: If `cancel` has been called.
        """
        if self._event.is_set():
            raise OptimizationCancelled
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise DeadlinePassed("the deadline has passed")


def _once(items: Iterable[T]) -> Iterator[T]:
    """An iterator that continues where it was left; those of onnx-ir begin again each time."""
    return chain(items)


class _Never(CancellationToken):
    """A token that is never cancelled."""

    def cancel(self) -> None:
        raise ValueError("NEVER is shared by everybody: it cannot be cancelled")

    def checked(self, items: Iterable[T]) -> Iterator[T]:
        return iter(items)

    def check(self) -> None:
        return


NEVER: Final[CancellationToken] = _Never()
"""Stands in where there is no token, and for work that must run to its end."""

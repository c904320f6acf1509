"""Pauses of Python's garbage collector, where many objects are made and none becomes garbage."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Final

MAX_NEW_OBJECTS: Final = 200_000
"""New objects above which none is visited when the collector is switched on again: that takes tenths of seconds."""

_PYTHONS_OWN: Final = 1_000
"""CPython 3.12 starts with hundreds of frozen objects; an application that freezes its own has thousands."""


class _Pauses:
    """The pauses of all threads, which share one collector."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._was_enabled = False
        self._left = False

    def begin(self) -> None:
        with self._lock:
            if not self._depth:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._depth += 1

    def end(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth or not self._was_enabled:
                return
            if gc.get_count()[0] > MAX_NEW_OBJECTS and gc.get_freeze_count() < _PYTHONS_OWN:
                gc.freeze()  # both take no time: all objects go to the permanent generation,
                gc.unfreeze()  # and from there to the oldest one, which is not walked for each young object
                self._left = True
            gc.enable()

    def collect(self) -> None:
        with self._lock:
            if self._depth or not self._left:
                return
            self._left = False
        gc.collect()


_pauses = _Pauses()


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch the collector off meanwhile: with millions of new objects and no garbage it only costs time.

    Nothing is collected at the end either, for a caller that has cancelled must not wait for it (see `collect_left`).
    """
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


def collect_left() -> None:
    """Collect the garbage among the objects of earlier pauses: of a large model, before the next one is loaded."""
    _pauses.collect()


__all__ = ["collect_left", "without_garbage_collection"]

"""Python's garbage collector, switched off where it can find nothing."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Final

MANY: Final = 200_000
"""So many new objects are not walked at once when the collector is switched on again: that takes tenths of seconds."""

_PYTHONS_OWN: Final = 1_000
"""CPython 3.12 starts with hundreds of frozen objects; who freezes an application has thousands, and wants them so."""


class _Pauses:
    """The pauses of all threads: the collector is one."""

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
            if gc.get_count()[0] > MANY and gc.get_freeze_count() < _PYTHONS_OWN:
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
    """Collect nothing meanwhile: among millions of new objects and no garbage, it would only count, again and again.

    Nor at the end, where somebody may wait who has cancelled (see `collect_left`).
    """
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


def collect_left() -> None:
    """Collect once what became of the objects that pauses have made old unseen: a large model, before the next one."""
    _pauses.collect()


__all__ = ["collect_left", "without_garbage_collection"]

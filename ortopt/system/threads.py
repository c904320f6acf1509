"""Background threads that start, or say that they cannot.

`threading.Thread.start` waits for a sign of the new thread. Where memory has run out, the thread can die before it
gives it, and the caller waits for ever. Here, it is told.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

_PATIENCE: Final = 10.0
"""Seconds in which a thread gives its first sign even on a busy machine."""

_BETWEEN_LOOKS: Final = 0.5


class Signal:
    """An event for which a thread waits without a new lock.

    `threading.Event.wait` allocates one each time, and a thread that looks twice a second would die of that where
    memory has run out.

    Attributes:
        is_set: Whether it has been given.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Give it; whoever waits for it goes on."""
        self.is_set = True
        with contextlib.suppress(RuntimeError):  # given before
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait until it is given.

        Args:
            seconds: The longest time.

        Returns:
            Whether it has been given.
        """
        if not self.is_set and self._lock.acquire(timeout=min(max(seconds, 0), threading.TIMEOUT_MAX)):
            self._lock.release()  # for the next one who waits
        return self.is_set


class BackgroundThread:
    """A thread that does not keep the interpreter from ending.

    Args:
        run: The work.
        name: Its name, as `running` gives it.

    Raises:
        MemoryError: If the thread does not start.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self.name = name
        self._run = run
        self._lock = threading.Lock()
        self._begun = Signal()
        self._ended = Signal()
        self._abandoned = False
        try:
            self._ident = _thread.start_new_thread(self._bootstrap, ())
        except RuntimeError as error:  # "can't start new thread": of memory for its stack, or of threads
            raise MemoryError(str(error)) from error
        if not self._begun.wait(_PATIENCE):
            with self._lock:
                self._abandoned = not self._begun.is_set
            if self._abandoned:
                raise MemoryError("a thread could not start")
        _STARTED.add(self)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; a thread that died for lack of memory, without a word, does not."""
        return not self._ended.is_set and self._ident in sys._current_frames()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for its end.

        Args:
            timeout: Seconds; without end if None.

        Returns:
            Whether it has ended.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while self.is_alive:
            left = _BETWEEN_LOOKS if end is None else min(_BETWEEN_LOOKS, end - time.monotonic())
            if left <= 0:
                return False
            self._ended.wait(left)
        return True

    def join_at_exit(self) -> None:
        """Let the interpreter end no sooner than the thread."""
        atexit.register(self.join)

    def _bootstrap(self) -> None:
        with self._lock:
            if self._abandoned:
                return
            self._begun.set()
        try:
            self._run()
        finally:
            self._ended.set()


_STARTED: Final[weakref.WeakSet[BackgroundThread]] = weakref.WeakSet()


def running() -> list[BackgroundThread]:
    """The background threads that have not ended."""
    return [thread for thread in _STARTED if thread.is_alive]

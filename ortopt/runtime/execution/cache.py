"""A bounded cache of what is expensive to make: least recently used goes first, and nothing is made twice at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """A mapping bounded in entries and in bytes; safe for many threads.

    Args:
        max_entries: How many entries it holds at most.
        max_bytes: How many bytes they have together at most; one entry that is larger is held alone.
        evicted: Called with each entry that is dropped, without the lock.
    """

    def __init__(self, max_entries: int, max_bytes: int, evicted: Callable[[Value], None] = lambda _: None) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._evicted = evicted
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._nbytes = 0
        self._making: dict[Hashable, Future[Value]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self._nbytes

    def items(self) -> list[tuple[Any, Value]]:
        """All entries, the least recently used one first."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._entries.items()]

    def get(self, key: Hashable) -> Value | None:
        """An entry, which is the most recently used one from now on; None if there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def get_or_make(self, key: Hashable, make: Callable[[], tuple[Value, int]]) -> Value:
        """An entry, made if there is none.

        Threads that ask for a key while another makes it wait for that one's result, or get its error.

        Args:
            key: The key.
            make: Returns the value and its bytes.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                return entry[0]
            future = self._making.get(key)
            if future is None:
                ours: Future[Value] = Future()
                self._making[key] = ours
        if future is not None:
            return future.result()
        try:
            value, nbytes = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            ours.set_exception(error)
            raise
        self._put(key, value, nbytes)
        ours.set_result(value)
        return value

    def _put(self, key: Hashable, value: Value, nbytes: int) -> None:
        dropped = []
        with self._lock:
            del self._making[key]
            self._entries[key] = (value, nbytes)
            self._nbytes += nbytes
            while len(self._entries) > 1 and (len(self._entries) > self._max_entries or self._nbytes > self._max_bytes):
                _, (old, size) = self._entries.popitem(last=False)
                self._nbytes -= size
                dropped.append(old)
        for old in dropped:
            self._evicted(old)

    def drop(self, key: Hashable) -> None:
        """Drop an entry, if it is there, without calling ``evicted``."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._nbytes -= entry[1]

    def clear(self) -> None:
        """Drop all entries, without calling ``evicted``."""
        with self._lock:
            self._entries.clear()
            self._nbytes = 0

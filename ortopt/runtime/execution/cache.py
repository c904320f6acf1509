"""A bounded cache of what is expensive to make: least recently used goes first, and nothing is made twice at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


@dataclass(slots=True)
class _Entry(Generic[Value]):
    """An entry.

    Attributes:
        value: What was made.
        nbytes: Its bytes.
        used: The moment at which it was last used.
    """

    value: Value
    nbytes: int
    used: int


class Cache(Generic[Value]):
    """A mapping bounded in entries and in bytes; safe for many threads.

    Args:
        max_entries: How many entries it holds at most.
        max_bytes: How many bytes they have together at most; one entry that is larger is held alone.
        evicted: Called with each entry that is dropped, without the lock.

    Attributes:
        max_entries: How many entries it holds at most.
        max_bytes: How many bytes they have together at most.
        nbytes: Bytes of all entries.
        clock: The number of uses so far: a moment.
    """

    def __init__(self, max_entries: int, max_bytes: int, evicted: Callable[[Value], None] = lambda _: None) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.clock = 0
        self._evicted = evicted
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()
        self.nbytes = 0
        self._making: dict[Hashable, Future[Value]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[tuple[Any, Value]]:
        """All entries, the least recently used one first."""
        with self._lock:
            return [(key, entry.value) for key, entry in self._entries.items()]

    def get(self, key: Hashable) -> Value | None:
        """An entry, which is the most recently used one from now on; None if there is none."""
        with self._lock:
            entry = self._used(key)
        return None if entry is None else entry.value

    def admits(self, nbytes: int, since: int) -> bool:
        """Whether an entry fits, or takes the place of such only as nobody has used since a moment.

        Args:
            nbytes: Its bytes.
            since: The moment, as `clock` has it.
        """
        with self._lock:
            count, total = len(self._entries) + 1, self.nbytes + nbytes
            for entry in self._entries.values():  # the least recently used one first
                if self._is_within(count, total):
                    return True
                if entry.used > since:
                    return False
                count, total = count - 1, total - entry.nbytes
        return True

    def _is_within(self, count: int, nbytes: int) -> bool:
        return count <= self.max_entries and nbytes <= self.max_bytes

    def _used(self, key: Hashable) -> _Entry[Value] | None:
        """An entry that is used now."""
        entry = self._entries.get(key)
        if entry is not None:
            self.clock += 1
            entry.used = self.clock
            self._entries.move_to_end(key)
        return entry

    def get_or_make(self, key: Hashable, make: Callable[[], tuple[Value, int]]) -> Value:
        """An entry, made if there is none.

        Threads that ask for a key while another makes it wait for that one's result, or get its error.

        Args:
            key: The key.
            make: Returns the value and its bytes.
        """
        with self._lock:
            entry = self._used(key)
            if entry is not None:
                return entry.value
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
            self.clock += 1
            self._entries[key] = _Entry(value, nbytes, self.clock)
            self.nbytes += nbytes
            while len(self._entries) > 1 and not self._is_within(len(self._entries), self.nbytes):
                _, entry = self._entries.popitem(last=False)
                self.nbytes -= entry.nbytes
                dropped.append(entry.value)
        for old in dropped:
            self._evicted(old)

    def drop(self, key: Hashable) -> None:
        """Drop an entry, if it is there, without calling ``evicted``."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.nbytes -= entry.nbytes

    def clear(self) -> None:
        """Drop all entries, without calling ``evicted``."""
        with self._lock:
            self._entries.clear()
            self.nbytes = 0

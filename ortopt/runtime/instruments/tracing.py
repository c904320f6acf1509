"""A timeline of every compile, run and copy in Chrome's trace format: ui.perfetto.dev and chrome://tracing open it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

MAX_EVENTS: Final = 1_000_000
"""A trace that goes on longer forgets its beginning."""


class Timeline:
    """Spans of many threads."""

    def __init__(self) -> None:
        self._zero = time.perf_counter()
        self._process = os.getpid()
        self._events: deque[tuple[str, str, float, float, int, dict[str, Any]]] = deque(maxlen=MAX_EVENTS)

    @contextlib.contextmanager
    def span(self, category: str, name: str, **details: Any) -> Iterator[None]:
        """A span as long as this lasts.

        Args:
            category: ``compile``, ``run``, ``copy`` or ``call``.
            name: What it is of.
            details: What a reader may want to know.
        """
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(category, name, start, time.perf_counter(), **details)

    def add(self, category: str, name: str, start: float, end: float, **details: Any) -> None:
        """A span that is over, on the clock of `time.perf_counter`."""
        self._events.append((category, name, start, end, threading.get_ident(), details))

    def mark(self, name: str, **details: Any) -> None:
        """A moment."""
        now = time.perf_counter()
        self._events.append(("mark", name, now, now, threading.get_ident(), details))

    def as_dict(self) -> dict[str, Any]:
        """The trace as data that json can write."""
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": self._process, "tid": 0, "args": {"name": "ortopt"}}
        ]
        for category, name, start, end, thread, details in list(self._events):
            event = {
                "name": name,
                "cat": category,
                "ph": "i" if category == "mark" else "X",
                "ts": round((start - self._zero) * 1e6, 3),
                "pid": self._process,
                "tid": thread,
                "args": details,
            }
            event.update({"s": "p"} if category == "mark" else {"dur": round((end - start) * 1e6, 3)})
            events.append(event)
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file."""
        Path(path).write_text(json.dumps(self.as_dict()), encoding="utf-8")

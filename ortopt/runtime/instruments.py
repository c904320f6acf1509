"""What a session counts, its timeline in Chrome's trace format (for ui.perfetto.dev), and ONNX Runtime's profiles."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.onnxruntime_internals import NativeSession


@dataclass(slots=True)
class Statistics:
    """What has happened since a session was made.

    Attributes:
        runs: Calls that came back with results.
        group_runs: Runs of groups, leftovers and host nodes in those calls.
        hits: Runs of a group whose executable was there.
        misses: Runs of a group that had to wait for a compilation.
        compiles: Executables made.
        evictions: Executables dropped from the cache.
        fallbacks: Groups that their provider could not run, and that another one or the host runs.
        specializations: Executables made for one argument specification.
        guard_failures: Runs whose arguments a specialization did not hold for, so that the general session ran.
        specialized_runs: Runs of a group by a version of it for such arguments.
        copies: Values that went from one device to another, by us or by ONNX Runtime at the edge of a group.
        copied_bytes: Their bytes.
        stored: Optimized group models written to the folder of the on-disk cache.
        restored: Optimized group models read from there.
        discarded: Files there that were damaged or came from elsewhere.
        captures: CUDA graphs captured, one for each argument specification and calling thread.
        synchronizations: Times that the host waited for the CUDA stream which the groups share.
    """

    runs: int = 0
    group_runs: int = 0
    hits: int = 0
    misses: int = 0
    compiles: int = 0
    evictions: int = 0
    fallbacks: int = 0
    specializations: int = 0
    guard_failures: int = 0
    specialized_runs: int = 0
    copies: int = 0
    copied_bytes: int = 0
    stored: int = 0
    restored: int = 0
    discarded: int = 0
    captures: int = 0
    synchronizations: int = 0


class Counters:
    """Statistics that many threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Statistics()

    def add(self, name: str, amount: int = 1) -> None:
        """Add to one of them."""
        with self._lock:
            setattr(self._totals, name, getattr(self._totals, name) + amount)

    def copied(self, values: int, nbytes: int) -> None:
        """Count values that went from one device to another."""
        totals = self._totals
        with self._lock:
            totals.copies += values
            totals.copied_bytes += nbytes

    def ran(self, groups: int) -> None:
        """Count one run of a plan of so many groups."""
        totals = self._totals
        with self._lock:
            totals.group_runs += groups
            totals.hits += groups

    def called(self) -> None:
        """Count one call of the session."""
        with self._lock:
            self._totals.runs += 1

    def missed(self) -> None:
        """Count a run that waited for a compilation; it will be counted as a hit when its plan is done."""
        with self._lock:
            self._totals.misses += 1
            self._totals.hits -= 1

    def snapshot(self) -> Statistics:
        """A copy of all of them, of one moment."""
        with self._lock:
            return Statistics(*(getattr(self._totals, field.name) for field in fields(Statistics)))


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


def span(
    timeline: Timeline | None, category: str, name: str, **details: Any
) -> contextlib.AbstractContextManager[None]:
    """A span on a timeline, if there is one; see `Timeline.span`."""
    return contextlib.nullcontext() if timeline is None else timeline.span(category, name, **details)


class Profiles:
    """The sessions that write a profile each; thread-safe.

    Args:
        options: The caller's ``onnxruntime.SessionOptions``.

    Attributes:
        goes_on: Whether sessions that are made now write profiles.
    """

    def __init__(self, options: onnxruntime.SessionOptions) -> None:
        self._lock = threading.Lock()
        self._prefix = str(options.profile_file_prefix)
        self._sessions: list[tuple[str, NativeSession]] = []
        self.goes_on = bool(options.enable_profiling)
        self._start = time.time_ns() if self.goes_on else 0

    @property
    def start_ns(self) -> int:
        """When the first profile started, in ONNX Runtime's nanoseconds; 0 without profiling."""
        with self._lock:
            return min((session.get_profiling_start_time_ns for _, session in self._sessions), default=self._start)

    def add(self, label: str, session: NativeSession) -> None:
        """Remember a session that writes a profile; one that comes too late is ended."""
        with self._lock:
            if self.goes_on:
                self._sessions.append((label, session))
                return
        _read(session)

    def forget(self) -> None:
        """Leave the sessions their own files, which they write when they are gone."""
        with self._lock:
            self.goes_on = False
            self._sessions.clear()

    def end(self) -> str:
        """End all profiles, and make one of them.

        Returns:
            The file, a list of events in Chrome's trace format on one clock; each says in ``args`` of which group it
            is. Empty where nothing was profiled.
        """
        with self._lock:
            if not self.goes_on:
                return ""
            self.goes_on = False
            sessions, self._sessions = self._sessions, []
        merged: list[dict[str, Any]] = []
        self._start = min((session.get_profiling_start_time_ns for _, session in sessions), default=self._start)
        for label, session in sessions:
            shift = (session.get_profiling_start_time_ns - self._start) / 1000
            for event in _read(session):
                event["ts"] = event.get("ts", 0) + round(shift)
                event["args"] = {**event.get("args", {}), "group": label}
                merged.append(event)
        merged.sort(key=lambda event: float(event["ts"]))
        path = Path(f"{self._prefix}_{datetime.now().astimezone():%Y-%m-%d_%H-%M-%S_%f}.json")
        path.write_text(json.dumps(merged), encoding="utf-8")
        return str(path)


def _read(session: NativeSession) -> list[dict[str, Any]]:
    """The events of a profile, which is ended and whose file is removed."""
    path = Path(session.end_profiling())
    events: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError):
        events = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
    return events

"""ONNX Runtime's profiles of several sessions as one."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortopt.runtime.onnxruntime_internals import NativeSession

if TYPE_CHECKING:
    import onnxruntime


class Profiles:
    """The sessions that write a profile each; thread-safe.

    Args:
        options: The caller's ``onnxruntime.SessionOptions``.
    """

    def __init__(self, options: onnxruntime.SessionOptions) -> None:
        self._lock = threading.Lock()
        self._prefix = str(options.profile_file_prefix)
        self._sessions: list[tuple[str, NativeSession]] = []
        self._goes_on = bool(options.enable_profiling)
        self._start = time.time_ns() if self._goes_on else 0

    @property
    def goes_on(self) -> bool:
        """Whether sessions that are made now write profiles."""
        return self._goes_on

    @property
    def start_ns(self) -> int:
        """When the first profile started, in ONNX Runtime's nanoseconds; 0 without profiling."""
        with self._lock:
            return min((session.get_profiling_start_time_ns for _, session in self._sessions), default=self._start)

    def add(self, label: str, session: NativeSession) -> None:
        """Remember a session that writes a profile; one that comes too late is ended."""
        with self._lock:
            if self._goes_on:
                self._sessions.append((label, session))
                return
        _read(session)

    def forget(self) -> None:
        """Leave the sessions their own files, which they write when they are gone."""
        with self._lock:
            self._goes_on = False
            self._sessions.clear()

    def end(self) -> str:
        """End all profiles, and make one of them.

        Returns:
            The file, a list of events in Chrome's trace format on one clock; each says in ``args`` of which group it
            is. Empty where nothing was profiled.
        """
        with self._lock:
            if not self._goes_on:
                return ""
            self._goes_on = False
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

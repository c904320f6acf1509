"""Starts the process in which models are run to be verified (`ortopt.verification.worker`).

It imports ONNX Runtime in about the time in which this one imports onnx: a command that knows that it will verify
starts it before all else (`early`). For that reason nothing but the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_COMMAND: Final = (sys.executable, "-m", "ortopt.verification.worker")

_waiting: list[subprocess.Popen[str]] = []


@contextlib.contextmanager
def early() -> Iterator[None]:
    """Start one for whoever asks first for a `process`; it is ended if nobody does."""
    process = _start()
    _waiting.append(process)
    try:
        yield
    finally:
        if process in _waiting:
            _waiting.remove(process)
            end(process)


def process() -> subprocess.Popen[str]:
    """One that waits for requests, or will: the caller ends it."""
    with contextlib.suppress(IndexError):  # another thread may be quicker
        waiting = _waiting.pop()
        if waiting.poll() is None:
            return waiting
        end(waiting)
    return _start()


def end(process: subprocess.Popen[str]) -> None:
    """End a process, and let go of all that belongs to it."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was not written has nowhere to go
                stream.close()


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_COMMAND, str(os.getpid())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",  # of what others have printed before the worker takes its descriptors
    )


__all__ = ["early", "end", "process"]

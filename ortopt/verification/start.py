"""Starts the process in which models are run to be verified (`ortopt.verification.worker`).

It imports ONNX Runtime in about the time in which this one imports onnx: a command that is going to verify starts it
before all else (`early`). For that reason only the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Final, NamedTuple

from ortopt.system.child_processes import end, spawn

_MODULE: Final = "ortopt.verification.worker"


class Runtime(NamedTuple):
    """A runtime in which models are run.

    Attributes:
        name: What people call it, with its release.
        interpreter: The Python that has it; None is this one.
        arguments: Of the process.
        providers: Full names of ONNX Runtime's execution providers that models run on there, before the CPU's.
    """

    name: str
    interpreter: str | None
    arguments: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()


_waiting: list[subprocess.Popen[bytes]] = []


@contextlib.contextmanager
def early() -> Iterator[None]:
    """Start a process now, for the first caller of `process`; it is ended here if there is none."""
    process = _start()
    _waiting.append(process)
    try:
        yield
    finally:
        if process in _waiting:
            _waiting.remove(process)
            end(process)


def process(runtime: Runtime | None = None) -> subprocess.Popen[bytes]:
    """A process that waits for requests, or will; the caller ends it.

    Args:
        runtime: Another runtime than the one that is installed here.
    """
    if runtime is not None:
        return spawn(_MODULE, *runtime.arguments, interpreter=runtime.interpreter)
    with contextlib.suppress(IndexError):  # another thread may be quicker
        waiting = _waiting.pop()
        if waiting.poll() is None:
            return waiting
        end(waiting)
    return _start()


def _start() -> subprocess.Popen[bytes]:
    return spawn(_MODULE)

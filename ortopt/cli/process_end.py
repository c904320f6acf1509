"""How a process of the command line ends: with all that Python promises at exit, but objects are not taken down."""

from __future__ import annotations

import atexit
import os
import sys
import threading


class CommandLineExit(SystemExit):
    """The end of the command line: where nothing catches it, so that it ends the process, it does so at once.

    Whatever catches it, such as a profiler or a test, sees a SystemExit as any other.
    """

    @property
    def code(self) -> str | int | None:  # type: ignore[override]
        """The exit code, as `sys.exit` takes it."""
        status: str | int | None = self.args[0]
        if sys._getframe().f_back is None:  # no Python code asks, but the interpreter, which is about to end
            end_process(status)
        return status


def end_process(status: str | int | None) -> None:
    """End the process: threads are joined, exit functions called and streams flushed, and then it is gone.

    The interpreter would then free every object and unload every library, which takes 30 of the 400 ms of a small run
    and gives the system nothing that it does not take itself. It is left to that where ONNX Runtime is loaded, whose
    sessions may write files when they are freed, in Python's development mode, which shows what has not been closed,
    and where a message has to be written: then this returns.

    Args:
        status: As `sys.exit` takes it.
    """
    if isinstance(status, str) or "onnxruntime" in sys.modules or sys.flags.dev_mode:
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):
        return  # the interpreter reports it
    os._exit((status or 0) & 0xFF)


__all__ = ["CommandLineExit", "end_process"]

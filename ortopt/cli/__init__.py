"""The command line: a file for each command, loaded when it is called.

Exit codes: 0 done, 1 usage, 2 bad input or an output that cannot be written, 3 a wrong result refused, 4 a pass failed
under ``--strict``, 130 cancelled, 70 a bug in ortopt.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import deque
from types import FrameType
from typing import Final, NoReturn

from ortopt._deferred_sympy import defer_sympy
from ortopt.system.child_processes import NO_TELEMETRY


def _terminate(number: int, _frame: FrameType | None) -> None:
    """Exit as after Ctrl-C, without temporary files and child processes; on a second signal at once."""
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def _complete_streams() -> None:
    """Replace standard streams that are closed.

    Otherwise a model's file would get their descriptor, and what is printed would go into it. The replacements cannot
    be read, nor, on stdout, written: that is an error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)  # gets the lowest number that is free
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))


_not_raised: Final[deque[sys.UnraisableHookArgs]] = deque(maxlen=16)
"""What could not be raised: an `append` is a hook without a frame of its own, which works where memory is out."""


def _report_what_was_not_raised() -> None:
    """Report what could not be raised, but for memory that was out: whoever asked for it is told, and reports it."""
    sys.unraisablehook = sys.__unraisablehook__
    while _not_raised:
        event = _not_raised.popleft()
        if event.exc_type is not MemoryError:
            sys.unraisablehook(event)


def main() -> NoReturn:
    """Run the command line on the process's arguments, and exit."""
    # A process of one command makes little garbage and ends soon: collections would only walk over the graph, and once
    # more when the interpreter ends.
    gc.disable()
    # numpy's library for matrix products starts a thread for each core, and each spins for a while for work that a
    # command hardly ever has: 5 to 10 % of a run's processor time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault(*NO_TELEMETRY)
    defer_sympy()
    sys.unraisablehook = _not_raised.append
    _complete_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        from ortopt.cli.group import commands
    except KeyboardInterrupt:  # nothing else catches it this early
        sys.exit(130)
    try:
        commands.main()
    finally:
        _report_what_was_not_raised()
        gc.freeze()


__all__ = ["main"]

"""The command line: one file a command, each loaded when it is called.

Exit codes: 0 done, 1 usage, 2 bad input or an output that cannot be written, 3 a wrong result refused, 4 a pass failed
under ``--strict``, 130 cancelled; and 70, a mistake in ortopt itself.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from ortopt._deferred_sympy import defer_sympy


def _terminate(number: int, _frame: FrameType | None) -> None:
    """Leave as after Ctrl-C, without temporary files and child processes; the second time at once."""
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def _complete_streams() -> None:
    """Put something in place of standard streams that are closed.

    Else a model's file would get their number, and what anybody prints would go into it. Nothing can be read there, and
    on stdout nothing can be written: that is an error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)  # gets the lowest number that is free
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))


def main() -> NoReturn:
    """Run the command line on the process's arguments, and exit."""
    # A process of one command makes next to no garbage, and ends soon: collections would only walk over the graph, the
    # last of them, when the interpreter ends, as well.
    gc.disable()
    defer_sympy()
    _complete_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        from ortopt.cli.group import commands
    except KeyboardInterrupt:  # as early as this, nothing else is there to catch it
        sys.exit(130)
    try:
        commands.main()
    finally:
        gc.freeze()


__all__ = ["main"]

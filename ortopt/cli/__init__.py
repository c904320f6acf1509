"""The command line: one file a command, each loaded when it is called.

Exit codes: 0 done, 1 usage, 2 bad input or an output that cannot be written, 3 a wrong result refused, 4 a pass failed
under ``--strict``, 130 cancelled; and 70, a mistake in ortopt itself.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line on the process's arguments, and exit."""
    # A process of one command makes next to no garbage, and ends soon: collections would only walk over the graph, the
    # last of them, when the interpreter ends, as well.
    gc.disable()
    try:
        from ortopt.cli.group import commands
    except KeyboardInterrupt:  # as early as this, nothing else is there to catch it
        sys.exit(130)
    try:
        commands.main()
    finally:
        gc.freeze()


__all__ = ["main"]

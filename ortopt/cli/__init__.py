"""The command line: one file a command, each loaded when it is called.

Exit codes: 0 done, 1 usage, 2 bad input or an output that cannot be written, 3 a wrong result refused, 4 a pass failed
under ``--strict``, 130 cancelled; and 70, a mistake in ortopt itself.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line on the process's arguments, and exit."""
    try:
        from ortopt.cli.group import commands
    except KeyboardInterrupt:  # as early as this, nothing else is there to catch it
        sys.exit(130)
    commands.main()
    raise AssertionError("click returned")  # `commands.main` exits


__all__ = ["main"]

"""What a command says and hears: its answer, warnings, and Ctrl-C, which stops at the next rewrite."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import click

from ortopt.cancellation import CancellationToken
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console


def answer(data: Any, show: Callable[[Any, Console], None], *, as_json: bool, stream: TextIO | None = None) -> None:
    """Print what a command has found.

    Args:
        data: The answer, as data that json can write.
        show: Prints it for people, on a console.
        as_json: Whether JSON was asked for.
        stream: Where people read it; stdout if None.
    """
    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    from ortopt.reporting import report

    show(data, report.console(stream or sys.stdout))


def warning(message: object) -> str:
    """What is printed for a warning: one line whatever it contains."""
    return f"ortopt: warning: {one_line(message)}"


def warn(message: object) -> None:
    """Print a warning to stderr."""
    tell(warning(message))


def tell(line: str) -> None:
    """Print a line to stderr: on a terminal broken between words where it must be, elsewhere as it is."""
    if not sys.stderr.isatty():
        click.echo(line, err=True)
        return
    from ortopt.reporting.tables import broken

    for part in broken(line, shutil.get_terminal_size().columns):
        click.echo(part, err=True)


@contextlib.contextmanager
def cancels(token: CancellationToken) -> Iterator[None]:
    """Let the first Ctrl-C cancel a token, within a ``with`` block; the second raises KeyboardInterrupt as usual.

    Args:
        token: The token.

    Raises:
        OptimizationCancelled: At the end, if the token was set after its last check.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # ignored, as under nohup, or handled by the caller
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        token.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if token.is_cancelled:
        token.check()

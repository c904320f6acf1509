"""What a command says besides its report."""

from __future__ import annotations

import click

from ortopt.terminal_text import one_line


def warn(message: object) -> None:
    """Say something on stderr, as one line that no name out of a file can break."""
    click.echo(f"ortopt: warning: {one_line(message)}", err=True)

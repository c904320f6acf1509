"""Warnings of a command, beside its report."""

from __future__ import annotations

import click

from ortopt.terminal_text import one_line


def warn(message: object) -> None:
    """Print a warning to stderr, as one line whatever it contains."""
    click.echo(f"ortopt: warning: {one_line(message)}", err=True)

"""``--max-memory``: the limit on the memory of a command."""

from __future__ import annotations

from typing import Any

import click


def memory_option(function: Any) -> Any:
    """The option; the limit holds while the command runs."""
    return click.option(
        "--max-memory",
        metavar="SIZE",
        expose_value=False,
        callback=_hold,
        help="Most memory to use, e.g. 2GB or unlimited, without mapped files.  [default: 75 % of the machine's]",
    )(function)


def _hold(ctx: click.Context, _: click.Parameter, text: str | None) -> None:
    from ortopt.system import memory

    if not ctx.resilient_parsing:
        ctx.with_resource(
            memory.bounded(memory.default_limit() if text is None else memory.parse_limit("--max-memory", text))
        )

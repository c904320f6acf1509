"""The options of a run as flags of the commands that run transformers: all of them derive from their declarations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.option_groups import Finite, count_option, memory_option
from ortopt.option_kinds import Choice, Count, Seconds, Share, Switch, Tolerance
from ortopt.options import Options, declarations

if TYPE_CHECKING:
    from ortopt.options import Declaration

HALF_PRECISION = ("float16", "bfloat16", "float16_tolerance", "float16_io", "keep_float32")
"""The options of a conversion to 16 bits, which is no pass."""

OF_SOME = (
    *("level", "strict", "repair", "rtol", "atol", "keep_pass", "verify_with", "provenance", "value_info", "rename"),
    *HALF_PRECISION,
)
"""The options that not every command has which runs transformers."""


def run_option(name: str, *, help_: str = "") -> Callable[[Any], Any]:
    """A decorator that adds the flag of an option, under the option's name.

    Args:
        name: An option with a flag, from `declarations`.
        help_: What it means for a command that runs no transformers; what is declared if empty.
    """
    declared = declarations()[name]
    kind = declared.kind
    default = getattr(Options(), name)
    more: dict[str, Any] = {"help": help_ or _help(declared)}
    if isinstance(kind, Switch):
        flag = f"{declared.flag}/--no-{declared.flag.removeprefix('--')}" if default else declared.flag
        return click.option(flag, name, is_flag=True, default=default, show_default=default, **more)
    if declared.metavar:
        more["metavar"] = declared.metavar
    if isinstance(kind, Count):
        more["type"] = click.IntRange(kind.least, kind.most)
    elif isinstance(kind, Choice):
        more["type"], default = click.Choice(kind.values), default.value
    elif isinstance(kind, Seconds | Share):
        more["type"] = float
    elif isinstance(kind, Tolerance):
        more["type"] = Finite(min=0)
    if isinstance(kind, Choice | Count) and default is not None and not declared.default:
        more |= {"default": default, "show_default": True}
    return click.option(declared.flag, name, multiple=kind.is_list, **more)


def _help(declared: Declaration) -> str:
    syntax = declared.kind.syntax
    meaning = f"{declared.help.removesuffix('.')}, {syntax}." if syntax else declared.help
    return f"{meaning}  [default: {declared.default}]" if declared.default else meaning


_GROUP_OPTIONS = (
    click.option(
        "--group-policy",
        type=click.Choice(["cost", "literal"]),
        help="-O4: group where it pays (cost), or everything that can be grouped (literal).  [default: cost]",
    ),
    count_option("--group-arg-limit", None, "-O4: most inputs and outputs that a group may have.  [default: 128]"),
)


def run_options(function: Any) -> Any:
    """The options that say what transforms a model, and for what: of every command that runs transformers."""
    own = [name for name, declared in declarations().items() if declared.flag and name not in OF_SOME]
    for decorate in reversed((*map(run_option, own), memory_option, *_GROUP_OPTIONS)):
        function = decorate(function)
    return function


def half_precision_options(function: Any) -> Any:
    """The options of a conversion to 16 bits."""
    for name in reversed(HALF_PRECISION):
        function = run_option(name)(function)
    return function


def checked_files(paths: tuple[str, ...]) -> tuple[str, ...]:
    """The shared libraries that the user named, which are there.

    Args:
        paths: Their paths.

    Raises:
        UsageError: If one is not there.
    """
    checked: tuple[str, ...] = declarations()["custom_op_libraries"].kind.checked("--custom-op-library", paths)
    return checked


def make_options(**arguments: Any) -> Options:
    """The options that the user asked for, checked.

    Args:
        **arguments: Arguments of the command; those that are no options of a run are ignored.

    Raises:
        UsageError: If a value makes no sense.
    """
    from ortopt import api

    values = {
        name: arguments[name] if arguments[name] is None else declared.kind.parsed(declared.flag, arguments[name])
        for name, declared in declarations().items()
        if name in arguments
    }
    values["providers"] = values["providers"] or ("cpu",)
    settings = _group_settings(arguments["group_policy"], arguments["group_arg_limit"])
    return api.make_options(**values, settings=settings, enforce_timeout=True)


def _group_settings(policy: str | None, argument_limit: int | None) -> dict[str, dict[str, object]]:
    """The settings of the pass that groups nodes, as far as the user asked for any."""
    settings: dict[str, object] = {"policy": policy, "argument_limit": argument_limit}
    settings = {name: value for name, value in settings.items() if value is not None}
    return {"group_fusion": settings} if settings else {}

"""What options of commands are made of: help by groups, types of numbers, and the limit on memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

FIRST: Final = frozenset(
    {"level", "providers", "target", "min_onnxruntime", "dims", "disable", "float16", "tune", "verify", "inputs"}
    | {"html_file", "json_file", "output", "baseline", "update", "latency", "jobs", "threads"}
)
"""The options that people need first, by name."""

HEADINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "Model and result": (
        *("output", "overwrite", "dims", "input_shapes", "external_data", "value_info", "provenance"),
        *("custom_op_libraries", "keep_functions", "freeze_initializers", "nonempty"),
    ),
    "Inputs and outputs of the result": (
        *("rename", "rename_dims", "keep_outputs", "drop_outputs", "int32_inputs", "image_inputs", "dynamic_batch"),
    ),
    "What runs the result": (
        *("providers", "target", "opset", "min_onnxruntime", "march", "for_threads", "dim_hints"),
    ),
    "What is done": (
        *("level", "disable", "enable", "only", "passes", "alone", "limit", "steps", "fusions", "force_forms", "costs"),
        *("finite_math", "bounded_error", "group_policy", "group_arg_limit"),
    ),
    "Computing in 16 bits": ("float16", "bfloat16", "float16_tolerance", "float16_io", "keep_float32"),
    "Tuning on this machine": ("tune", "tune_seconds", "tune_threads", "choices_file"),
    "What it may cost": ("max_growth", "timeout", "max_memory", "jobs"),
    "Verification": (
        *("verify", "verify_with", "strict", "thorough", "layers", "rtol", "atol", "repair", "keep_pass", "inputs"),
        "check_each",
    ),
    "Regression check": (
        *("baseline", "update", "prune", "latency", "latency_rounds", "threads", "shard", "resume", "changed_since"),
        "dask",
    ),
    "Reports": (
        *("html_file", "json_file", "as_json", "markdown", "junit", "profile", "dump_dir", "trace_file", "verbose"),
        *("annotations", "quiet"),
    ),
}
"""The names of options below each heading, in order."""


class GroupedCommand(click.Command):
    """A command whose ``--help`` shows the options that people need first, and ``--help-all`` all, below headings."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, with the option that shows all of them."""
        found = super().get_params(ctx)
        return [*found[:-1], _ALL, found[-1]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings."""
        params = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        options = {str(param.name): param for param in params}
        shown = options.keys() if ctx.meta.get(str(_ALL.name)) else FIRST
        sections = [
            (heading, [options[name] for name in names if name in options and name in shown])
            for heading, names in HEADINGS.items()
        ]
        for heading, found in (*sections, ("Help", params[-2:])):
            records = [record for option in found if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _show_all(ctx: click.Context, param: click.Parameter, asked: bool) -> Any:
    if asked and not ctx.resilient_parsing:
        ctx.meta[str(param.name)] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_ALL: Final = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options and exit.",
)


THREADS: Final = click.IntRange(min=0, max=1024)
"""Threads within an op: ONNX Runtime starts any number of them, and a million take it hours."""


class Finite(click.FloatRange):
    """A range of floats without infinities and NaN, which pass every comparison or none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a text."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is not finite.", param, ctx)
        return number


def count_option(
    flag: str, default: int | None, help_: str, *, least: int = 1, most: int | None = None, **more: Any
) -> Callable[[Any], Any]:
    """An option that takes a whole number.

    Args:
        flag: The flag.
        default: What it is where it is not given, which the help says; None if the command chooses.
        help_: What it means.
        least: The smallest number.
        most: The greatest number.
        more: Other arguments of click's.
    """
    kind = click.IntRange(least, most)
    return click.option(flag, type=kind, default=default, show_default=default is not None, help=help_, **more)


def inputs_option(help_: str) -> Callable[[Any], Any]:
    """The option that names a file of input arrays."""
    return click.option("--inputs", metavar="FILE.npz", help=help_)


def external_data_option(help_: str) -> Callable[[Any], Any]:
    """The option that says where the weights of a model that is written go."""
    kind = click.Choice(["auto", "inline", "copy", "reuse"])
    return click.option("--external-data", type=kind, default="auto", show_default=True, help=help_)


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

"""``ortopt optimize``: transform, verify, write, report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.limits import memory_option

if TYPE_CHECKING:
    from ortopt.options import Options

UNLIMITED = "unlimited"


strict_option = click.option("--strict", is_flag=True, help="A pass that fails ends the run (exit 4).")


def run_options(function: Any) -> Any:
    """The options that say what transforms a model, and for what: of every command that runs transformers."""
    for decorate in reversed(
        (
            click.option("--provider", multiple=True, metavar="NAME", help="cpu, cuda, ...; the first is preferred."),
            click.option(
                "--target",
                type=click.Choice(["onnx", "ort"]),
                default="ort",
                show_default=True,
                help="Keep to the official opsets, or use ONNX Runtime's own ops too.",
            ),
            click.option("--native", is_flag=True, help="Allow what is tied to this very processor."),
            click.option("--opset", type=click.IntRange(min=1), help="Convert to this opset of ai.onnx."),
            click.option(
                "--min-onnxruntime",
                metavar="VERSION",
                help="The oldest ONNX Runtime that the result must run on; the installed one if left out.",
            ),
            click.option("--dim", multiple=True, metavar="NAME=VALUE", help="Fix a symbolic input dimension."),
            click.option("--disable", multiple=True, metavar="A,B", help="Leave passes out; NAME@2 at level 2 only."),
            click.option("--enable", multiple=True, metavar="A,B", help="Add passes that are off by default."),
            click.option("--only", multiple=True, metavar="A,B", help="Run nothing else."),
            click.option("--passes", metavar="TEXT", help="A pipeline: 'NAME{option=value},NAME'."),
            click.option("--limit", type=click.IntRange(min=0), help="Stop after rewrite N."),
            click.option("--max-growth", metavar="SIZE", help="e.g. 0, 1MB, unlimited.  [default: max(1MB, 1 %)]"),
            click.option(
                "--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Of each level, at most."
            ),
            click.option("--timeout", type=float, metavar="SECONDS", help="Then end with the best so far."),
            memory_option,
            click.option("--check-each", is_flag=True, help="Look at the model after every pass; name who breaks it."),
            click.option("--keep-functions", is_flag=True, help="Do not inline local functions."),
            click.option(
                "--group-policy",
                type=click.Choice(["cost", "literal"]),
                help="-O4: weigh sessions, or fuse whatever can be.  [default: cost]",
            ),
            click.option(
                "--group-arg-limit",
                type=click.IntRange(min=1),
                help="-O4: values that a group may take and give.  [default: 128]",
            ),
        )
    ):
        function = decorate(function)
    return function


def make_options(*, level: int, provenance: bool = False, **given: Any) -> Options:
    """What the user asked for, checked.

    Raises:
        UsageError: If something of it makes no sense.
    """
    from ortopt import api

    return api.make_options(
        level=level,
        providers=commas(given["provider"]) or ("cpu",),
        target=given["target"],
        native=given["native"],
        opset=given["opset"],
        min_onnxruntime=given["min_onnxruntime"],
        dims=dims(given["dim"]),
        disable=commas(given["disable"]),
        enable=commas(given["enable"]),
        only=commas(given["only"]),
        passes=given["passes"],
        limit=given["limit"],
        max_growth=_growth(given["max_growth"]),
        steps=given["steps"],
        timeout=given["timeout"],
        strict=given.get("strict", False),
        check_each=given["check_each"],
        repair=given.get("repair", True),
        keep_pass=given.get("keep_pass", False),
        provenance=provenance,
        keep_functions=given["keep_functions"],
        settings=_group_settings(given["group_policy"], given["group_arg_limit"]),
    )


def _group_settings(policy: str | None, argument_limit: int | None) -> dict[str, dict[str, object]]:
    """The settings of the pass that groups, as far as the user says something."""
    said: dict[str, object] = {"policy": policy, "argument_limit": argument_limit}
    given = {name: value for name, value in said.items() if value is not None}
    return {"group_fusion": given} if given else {}


def commas(values: tuple[str, ...]) -> tuple[str, ...]:
    """Values of an option that may be repeated and takes lists."""
    return tuple(name for value in values for part in value.split(",") if (name := part.strip()))


def dims(values: tuple[str, ...]) -> dict[str, int]:
    """Values of ``--dim``.

    Raises:
        UsageError: If one is no NAME=VALUE.
    """
    dims: dict[str, int] = {}
    for text in values:
        name, _, number = text.rpartition("=")
        if not name or not number.strip().isdecimal():
            raise click.UsageError(f"--dim takes NAME=VALUE, not {text!r}")
        if dims.setdefault(name.strip(), int(number)) != int(number):
            raise click.UsageError(f"--dim {name.strip()} is given twice: {dims[name.strip()]} and {number}")
    return dims


def _growth(text: str | None) -> int | None:
    import sys

    from ortopt.registry import parse_size

    if text is None:
        return None
    return sys.maxsize if text.strip().lower() == UNLIMITED else parse_size(text)


@click.command("optimize", short_help="Make a model smaller and faster, and verify it.")
@click.argument("model", metavar="IN")
@click.option("-o", "--output", metavar="OUT", help="[default: IN-stem.opt.onnx beside IN]")
@click.option("-O", "level", type=click.IntRange(0, 4), default=3, show_default=True, help="-O0 to -O4.")
@run_options
@strict_option
@click.option("--verify/--no-verify", default=True, show_default=True, help="Compare numbers with the original.")
@click.option("--thorough", is_flag=True, help="Verify on many more input sets.")
@click.option("--repair/--no-repair", default=True, show_default=True, help="Leave out what makes the result differ.")
@click.option("--keep-pass", is_flag=True, help="Leave out single rewrites then, not their pass.")
@click.option("--inputs", metavar="FILE.npz", help="Arrays to verify with, by input name.")
@click.option(
    "--external-data",
    type=click.Choice(["auto", "inline", "copy", "reuse"]),
    default="auto",
    show_default=True,
    help="Weights in the model's file, copied beside it, or left in the original's files.",
)
@click.option("--provenance", is_flag=True, help="Write into each new node which pass made it, from which nodes.")
@click.option("--json", "json_file", metavar="FILE", help="The report as data.")
@click.option("--dump-dir", metavar="DIR", help="The model before and after each pass that changed it.")
@click.option("--trace", "trace_file", metavar="FILE", help="A trace for ui.perfetto.dev.")
@click.option("-v", "--verbose", is_flag=True, help="List passes that changed nothing too.")
@click.option("-q", "--quiet", is_flag=True, help="No report, no progress; warnings and errors only.")
def command(model: str, level: int, **given: Any) -> None:
    """Optimize a model, verify the result against the original, and write it.

    IN is a file, "-" for stdin, or zoo:NAME. OUT may be "-" for stdout; the report then goes to stderr.
    """
    if given["verify"]:
        from ortopt.verification import start

        click.get_current_context().with_resource(start.early())
    from ortopt.cli.optimization import Run

    Run(model, make_options(level=level, **given), **given).all()

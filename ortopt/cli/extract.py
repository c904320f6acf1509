"""``ortopt extract``: a part of a model as a model of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.option_groups import external_data_option, memory_option
from ortopt.cli.run_options import run_option

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.extraction import Part
    from ortopt.serialization.save import Saved


@click.command("extract", short_help="Write a part of a model as a model of its own.")
@click.argument("model")
@click.option("--inputs", multiple=True, metavar="A,B", help="Values that become inputs.  [default: the model's]")
@click.option("--outputs", multiple=True, metavar="A,B", help="Values that become outputs.  [default: the model's]")
@click.option("-o", "--output", required=True, metavar="PART", help='The file, or "-" for stdout.')
@run_option("rename")
@external_data_option("Weights in the part's file, copied beside it, or left in the model's files.")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="What was written, as data.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing.")
def command(model: str, output: str, external_data: Any, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Write the part of a model that computes some values from others, with the weights that it needs.

    Values are named as the main graph names them: its inputs and outputs, results of nodes, weights. MODEL is a file,
    "-" for stdin, or zoo:NAME.
    """
    from ortopt.cli import files, models
    from ortopt.cli.interaction import answer, warn
    from ortopt.errors import UsageError
    from ortopt.extraction import extract
    from ortopt.option_kinds import commas, new_names

    if as_json and output == files.STREAM:
        raise UsageError("only one of the part and --json can go to stdout")
    files.check_outputs({"-o": output}, {})
    argument = models.resolve(model)
    files.check_outputs({"-o": output}, {"the model": argument.path})
    part = extract(
        argument.source,
        inputs=commas(flags["inputs"]) if flags["inputs"] else None,
        outputs=commas(flags["outputs"]) if flags["outputs"] else None,
        rename=new_names("--rename", flags["rename"]),
    )
    files.check_not_read({"-o": output}, {"external data of the model": models.external_data(part.model)})
    saved = part.save(sys.stdout.buffer if output == files.STREAM else output, external_data=external_data)
    if saved.not_reused:
        warn(saved.not_reused)
    data = describe(part, saved, argument.label)
    if as_json or not quiet:
        answer(data, _show, as_json=as_json, stream=sys.stderr if output == files.STREAM else None)


def describe(part: Part, saved: Saved, label: str) -> dict[str, Any]:
    """A part that has been written, as data that json can write.

    Args:
        part: The part.
        saved: What was written.
        label: What the user called the model.
    """
    from ortopt.reporting import interface

    return {
        "schema": 1,
        "model": label,
        **interface.written(saved),
        "nodes": {"model": part.of_nodes, "part": part.nodes},
        "initializers": len(part.model.graph.initializers),
        **interface.described_both(part.model.graph),
    }


def _show(data: dict[str, Any], out: Console) -> None:
    from ortopt.reporting import interface

    interface.show_written(out, data, f"{data['nodes']['part']} of {data['nodes']['model']} nodes")

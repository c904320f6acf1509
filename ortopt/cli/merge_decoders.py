"""``ortopt merge-decoders``: a decoder with and without past as one model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.option_groups import external_data_option, memory_option

if TYPE_CHECKING:
    from rich.console import Console


@click.command("merge-decoders", short_help="Write a decoder with and without past as one model.")
@click.argument("decoder", metavar="DECODER")
@click.argument("with_past", metavar="WITH_PAST")
@click.option("-o", "--output", required=True, metavar="MERGED", help='The file, or "-" for stdout.')
@click.option(
    "--verify/--no-verify", default=True, show_default=True, help="Run both branches against the two decoders."
)
@external_data_option("Weights in the file, copied beside it, or left in the decoders' files.")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="What was written, as data.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing.")
def command(decoder: str, with_past: str, output: str, external_data: Any, **flags: bool) -> None:
    """Merge DECODER and the same one WITH_PAST into one model that has each weight once.

    Inputs and outputs are named as Optimum's decoder_model_merged.onnx names them: the input use_cache_branch, one
    boolean, chooses whether the past is read.
    """
    from ortopt.cli import files, models
    from ortopt.cli.interaction import answer
    from ortopt.errors import UsageError
    from ortopt.merging import merge_decoders
    from ortopt.reporting import interface

    if flags["as_json"] and output == files.STREAM:
        raise UsageError("only one of the model and --json can go to stdout")
    files.check_outputs({"-o": output}, {})
    arguments = [models.resolve(model) for model in (decoder, with_past)]
    first, later = (argument.path for argument in arguments)
    files.check_outputs({"-o": output}, {"the decoder": first, "that with past": later})
    merged = merge_decoders(*(argument.source for argument in arguments), verify=flags["verify"])
    files.check_not_read({"-o": output}, {"external data of a decoder": models.external_data(merged.model)})
    saved = merged.save(sys.stdout.buffer if output == files.STREAM else output, external_data=external_data)
    data = {
        "schema": 1,
        "models": [argument.label for argument in arguments],
        **interface.written(saved),
        "initializers": {"models": merged.weights, "merged": len(merged.model.graph.initializers)},
        "verified": merged.verified,
        "reason": merged.reason,
        **interface.described_both(merged.model.graph),
    }
    if flags["as_json"] or not flags["quiet"]:
        answer(data, _show, as_json=flags["as_json"], stream=sys.stderr if output == files.STREAM else None)


def _show(data: dict[str, Any], out: Console) -> None:
    from ortopt.reporting import interface
    from ortopt.terminal_text import one_line

    weights = f"{data['initializers']['models']} → {data['initializers']['merged']} weights"
    reason = f": {one_line(data['reason'])}" if data["reason"] else ""
    how = "verified in both branches" if data["verified"] else f"not verified{reason}"
    interface.show_written(out, data, weights, how)

"""``ortopt zoo``: real models to try ortopt on."""

from __future__ import annotations

import json
import sys

import click


@click.group("zoo")
def command() -> None:
    """Real models to try ortopt on (extra: zoo); zoo:NAME is a model argument."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the models of the zoo."""
    from ortopt import zoo
    from ortopt.reporting import report, tables

    entries = [zoo.entry(name) for name in zoo.names()]
    if as_json:
        models = [
            {
                "name": entry.name,
                "family": entry.family,
                "exporter": entry.exporter,
                "opset": dict(entry.opset),
                "nodes": entry.nodes,
                "inputs": {
                    name: {"dtype": spec.dtype, "shape": list(spec.shape)} for name, spec in entry.inputs.items()
                },
            }
            for entry in entries
        ]
        click.echo(json.dumps(models, indent=2))
        return
    rows = ((e.name, e.family, e.exporter, e.opset.get("ai.onnx", ""), e.nodes) for e in entries)
    headers = ("model", "family", "exporter", "opset", "nodes")
    report.console(sys.stdout).print(tables.table(headers, rows, text=3, spare=("exporter", "family")))


@command.command("grow")
@click.argument("name")
@click.argument("out")
def grow(name: str, out: str) -> None:
    """Write the model NAME, weights and all, to the file OUT, or "-" for stdout."""
    from ortopt import zoo
    from ortopt.cli import files

    name = name.removeprefix("zoo:")
    files.check_outputs({"OUT": out}, {"the zoo's own file": zoo.skeleton(name)})
    if out == files.STREAM:
        files.write_bytes(out, zoo.cached(name).read_bytes())
    else:
        zoo.grow(name, out)

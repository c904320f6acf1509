"""``ortopt info``: what is in a model."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.limits import memory_option

if TYPE_CHECKING:
    import onnx_ir as ir


def _versions(context: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Show what is installed, where that is asked for."""
    if wanted:
        from ortopt.cli import versions

        versions.show(context, param, wanted)


@click.command("info")
@click.argument("model")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="As data.", is_eager=True)
@click.option("--versions", is_flag=True, expose_value=False, callback=_versions, help="Show what is installed.")
def command(model: str, as_json: bool) -> None:
    """Show what a model holds.

    MODEL is a file, "-" for stdin, or zoo:NAME.
    """
    from ortopt.cli import models
    from ortopt.serialization.load import load

    argument = models.resolve(model)
    data = describe(load(argument.source), argument.label)
    if as_json:
        click.echo(json.dumps(data, indent=2))
    else:
        _show(data)


def describe(model: ir.Model, label: str) -> dict[str, Any]:
    """What a model holds, as data that json can write.

    Args:
        model: As `load` returns it.
        label: As the user named it.
    """
    from ortopt.api import figures
    from ortopt.graph import scope
    from ortopt.reporting import report
    from ortopt.semantics import constant_tensor
    from ortopt.serialization.load import SOURCE_KEY

    counts = figures(model)
    graphs = list(scope.graphs(model))
    tensors = [value.const_value for graph in graphs for value in graph.initializers.values()]
    tensors += [
        constant_tensor(node.outputs[0])
        for graph in graphs
        for node in graph
        if node.op_type == "Constant" and not node.domain
    ]
    origin = model.meta.get(SOURCE_KEY)
    return {
        "schema": 1,
        "model": label,
        "ir_version": model.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in sorted(model.opset_imports.items())},
        "producer": {"name": model.producer_name, "version": model.producer_version},
        "graph": model.graph.name,
        "metadata": dict(model.metadata_props),
        "inputs": [_value(value) for value in model.graph.inputs],
        "outputs": [_value(value) for value in model.graph.outputs],
        "nodes": counts.nodes,
        "by_op": dict(counts.ops),
        "blocks": {name: report.plain(count) for name, count in counts.blocks.items()},
        "initializers": counts.initializers,
        "parameters": sum(tensor.size for tensor in tensors if tensor is not None),
        "constant_bytes": counts.nbytes,
        "file_bytes": None if origin is None else origin.nbytes,
        "external_data": origin is not None and origin.external,
        "functions": {
            f"{function.domain}::{function.name}": sum(1 for graph in scope.below(function.graph) for _ in graph)
            for function in model.functions.values()
        },
        "subgraphs": len(graphs) - 1 - len(model.functions),
    }


def _value(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape.dims]
    return {"name": value.name, "type": None if value.type is None else str(value.type), "shape": shape}


def _show(data: dict[str, Any]) -> None:
    from ortopt.reporting import report

    opsets = ", ".join(f"{domain} {version}" for domain, version in data["opsets"].items())
    subgraphs = f"{data['subgraphs']} subgraphs" if data["subgraphs"] else ""
    functions = f"{len(data['functions'])} functions" if data["functions"] else ""
    inside = ", ".join(filter(None, (f"{data['nodes']} nodes", subgraphs, functions)))
    file = "unknown" if data["file_bytes"] is None else report.size(data["file_bytes"])
    fused = report.fused(data["blocks"])
    rows = [
        ("opsets", opsets),
        ("IR version", data["ir_version"]),
        ("producer", " ".join(filter(None, data["producer"].values())) or "unknown"),
        ("graph", f"{data['graph'] or 'unnamed'}: {inside}"),
        ("parameters", f"{data['parameters']:,} in {data['initializers']} initializers and Constant nodes"),
        ("constants", report.size(data["constant_bytes"])),
        *([("fused", fused)] if fused else []),
        ("file", file + (", with external data" if data["external_data"] else "")),
    ]
    out = report.console(sys.stdout)
    out.print(report.table(("", ""), rows, text=2, headless=True))
    for kind in ("inputs", "outputs"):
        values = ((value["name"], value["type"] or "unknown", _shape(value["shape"])) for value in data[kind])
        out.print()
        out.print(report.table((kind, "type", "shape"), values, text=3))
    out.print()
    by_count = sorted(data["by_op"].items(), key=lambda item: (-item[1], item[0]))
    out.print(report.table(("op", "nodes"), by_count))
    if data["functions"]:
        out.print()
        out.print(report.table(("function", "nodes"), sorted(data["functions"].items())))


def _shape(dims: list[int | str | None] | None) -> str:
    if dims is None:
        return "unknown rank"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"

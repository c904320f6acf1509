"""``ortopt info``: what is in a model, and with ``--versions`` what is installed."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any, Final

import click

from ortopt.cli.interaction import answer, warn
from ortopt.cli.option_groups import memory_option
from ortopt.cli.run_options import run_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir
    from rich.console import Console

_PACKAGES: Final = ("onnx", "onnx-ir", "numpy", "ml-dtypes", "protobuf", "rich", "click")


def what_is_installed() -> dict[str, Any]:
    """What is installed, as data that json can write."""
    from ortopt._version import __version__
    from ortopt.analysis import providers

    found = providers.distributions()
    runtime = providers.runtime()
    return {
        "schema": 1,
        "ortopt": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "onnxruntime": {
            "distributions": found,
            "remedy": providers.remedy(tuple(found)),
            **runtime,
            **_abilities(runtime["version"]),
        },
    }


def _abilities(version: str | None) -> dict[str, Any]:
    """What a version of ONNX Runtime reads, and what ortopt has to do without in it."""
    from ortopt.analysis import providers, releases

    if version is None:
        return {"reads": None, "lacks": []}
    release = providers.release_of(version)
    reads = {"opset": releases.newest_opset(release), "ir_version": releases.newest_ir(release)}
    told = providers.too_old(version)
    if told:
        return {"reads": reads, "lacks": [{"what": told, "since": releases.shown(providers.OLDEST)}]}
    from ortopt.runtime.onnxruntime_internals import missing_features

    lost = [feature for feature in missing_features() if feature.lost]
    return {"reads": reads, "lacks": [{"what": feature.lost, "since": feature.release} for feature in lost]}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def show_versions(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print what is installed, and end the command: the callback of the option.

    Args:
        context: The command's context.
        wanted: Whether the option was given.
    """
    if not wanted or context.resilient_parsing:
        return
    answer(what_is_installed(), _print, as_json=context.params.get("as_json", False))
    context.exit()


def _print(data: dict[str, Any], out: Console) -> None:
    from ortopt.reporting import tables

    runtime = data["onnxruntime"]
    installed = ", ".join(f"{name} {version}" for name, version in runtime["distributions"].items())
    rows = [("ortopt", data["ortopt"]), ("Python", data["python"]), ("platform", data["platform"])]
    rows += [(name, version or "not installed") for name, version in data["packages"].items()]
    rows.append(("ONNX Runtime", runtime["version"] or runtime["error"]))
    if runtime["version"] or installed:
        rows.append(("installed as", installed or "a package that no distribution is known of"))
        rows.append(("providers", ", ".join(runtime["providers"])))
    if runtime["reads"] is not None:
        rows.append(("reads", f"opset {runtime['reads']['opset']}, IR version {runtime['reads']['ir_version']}"))
    rows += [(f"lacks, {lack['since']} has", lack["what"]) for lack in runtime["lacks"]]
    out.print(tables.table(("", ""), rows, text=2, headless=True))
    if runtime["remedy"]:
        warn(runtime["remedy"])


@click.command("info", short_help="Show what a model holds: sizes, shapes, multiply-adds.")
@click.argument("model")
@run_option("dims", help_="Show shapes and multiply-adds for these sizes.")
@run_option("input_shapes", help_="Likewise, by the names of inputs.")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", is_eager=True)
@click.option("--versions", is_flag=True, expose_value=False, callback=show_versions, help="Show what is installed.")
def command(model: str, as_json: bool, dims: tuple[str, ...], input_shapes: tuple[str, ...]) -> None:
    """Show what a model holds: shapes as they are inferred, weights, ops and their multiply-adds.

    Where sizes are free, multiply-adds are formulas. MODEL is a file, "-" for stdin, or zoo:NAME.
    """
    from ortopt.analysis.dimensions import override
    from ortopt.cli import models
    from ortopt.option_kinds import named_shapes, named_sizes
    from ortopt.serialization.load import load

    sizes, shapes = named_sizes("--dim", dims), named_shapes("--input-shape", input_shapes)
    argument = models.resolve(model)
    loaded = load(argument.source)
    override(loaded, sizes, shapes)
    answer(describe(loaded, argument.label), _show, as_json=as_json)


def describe(model: ir.Model, label: str) -> dict[str, Any]:
    """What a model holds, as data that json can write.

    Args:
        model: As `load` returns it.
        label: As the user named it.
    """
    from ortopt.analysis.shapes import infer_model
    from ortopt.api import figures
    from ortopt.graph import scope
    from ortopt.reporting import interface, report
    from ortopt.serialization.load import SOURCE_KEY

    interfaces = interface.described_both(model.graph)
    infer_model(model)
    for value, row in zip(
        (*model.graph.inputs, *model.graph.outputs), (*interfaces["inputs"], *interfaces["outputs"]), strict=True
    ):
        row["inferred"] = interface.inferred_shape(value)
    counts = figures(model)
    graphs = list(scope.graphs(model))
    origin = model.meta.get(SOURCE_KEY)
    return {
        "schema": 1,
        "model": label,
        "ir_version": model.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in sorted(model.opset_imports.items())},
        "producer": {"name": model.producer_name, "version": model.producer_version},
        "graph": model.graph.name,
        "metadata": dict(model.metadata_props),
        **interfaces,
        "nodes": counts.nodes,
        "by_op": dict(counts.ops),
        "blocks": {name: report.plain(count) for name, count in counts.blocks.items()},
        "initializers": counts.initializers,
        "parameters": _parameters(graphs),
        "constant_bytes": counts.nbytes,
        "multiply_adds": _multiply_adds(model),
        "file_bytes": None if origin is None else origin.nbytes,
        "external_data": origin is not None and origin.external,
        "functions": {
            f"{function.domain}::{function.name}": sum(1 for graph in scope.below(function.graph) for _ in graph)
            for function in model.functions.values()
        },
        "subgraphs": len(graphs) - 1 - len(model.functions),
    }


def _parameters(graphs: Iterable[ir.Graph]) -> int:
    """The number of elements of all constants."""
    from ortopt.semantics import constant_tensor

    graphs = list(graphs)
    tensors = [value.const_value for graph in graphs for value in graph.initializers.values()]
    constants = (node for graph in graphs for node in graph if node.op_type == "Constant" and not node.domain)
    tensors += [constant_tensor(node.outputs[0]) for node in constants]
    return sum(tensor.size for tensor in tensors if tensor is not None)


def _multiply_adds(model: ir.Model) -> dict[str, Any]:
    """The multiply-adds as data: numbers, formulas as text, None for what is not known."""
    from ortopt.analysis.multiply_adds import multiply_adds

    counted = multiply_adds(model)
    return {
        "total": _plain(counted.total),
        "by_op": {op: _plain(count) for op, count in sorted(counted.by_op.items())},
        "unknown": dict(sorted(counted.unknown.items())),
    }


def _plain(count: Any) -> int | str | None:
    return count if isinstance(count, int) else count.value


def _show(data: dict[str, Any], out: Console) -> None:
    from ortopt.reporting import interface

    interface.print_table(out, ("", ""), _facts(data), text=2, headless=True)
    interface.show(out, data)
    out.print()
    by_count = sorted(data["by_op"].items(), key=lambda item: (-item[1], item[0]))
    work = data["multiply_adds"]["by_op"]
    if all(isinstance(count, int) for count in work.values()):
        rows: list[tuple[object, ...]] = [(op, count, interface.number(work.get(op, ""))) for op, count in by_count]
        interface.print_table(out, ("op", "nodes", "multiply-adds"), rows)
    else:
        interface.print_table(out, ("op", "nodes"), by_count)
        out.print()
        for op, count in work.items():
            out.print(f"multiply-adds of {op}: {interface.number(count)}")
    for op, count in data["multiply_adds"]["unknown"].items():
        out.print(f"multiply-adds of {count} {op} are not counted: their sizes are not known")
    if data["functions"]:
        out.print()
        interface.print_table(out, ("function", "nodes"), sorted(data["functions"].items()))


def _facts(data: dict[str, Any]) -> list[tuple[str, object]]:
    """What there is to say of the whole, in words."""
    from ortopt.reporting import interface, report

    opsets = ", ".join(f"{domain} {version}" for domain, version in data["opsets"].items())
    subgraphs = f"{data['subgraphs']} subgraphs" if data["subgraphs"] else ""
    functions = f"{len(data['functions'])} functions" if data["functions"] else ""
    inside = ", ".join(filter(None, (f"{data['nodes']} nodes", subgraphs, functions)))
    file = "unknown" if data["file_bytes"] is None else report.size(data["file_bytes"])
    fused = report.fused(data["blocks"])
    total, unknown = data["multiply_adds"]["total"], data["multiply_adds"]["unknown"]
    more = f", and those of {sum(unknown.values())} nodes of unknown size" if unknown else ""
    return [
        ("opsets", opsets),
        ("IR version", data["ir_version"]),
        ("producer", " ".join(filter(None, data["producer"].values())) or "unknown"),
        ("graph", f"{data['graph'] or 'unnamed'}: {inside}"),
        ("parameters", f"{data['parameters']:,} in {data['initializers']} initializers and Constant nodes"),
        ("constants", report.size(data["constant_bytes"])),
        *([("multiply-adds", f"{interface.number(total)}{more}")] if total or unknown else []),
        *([("fused", fused)] if fused else []),
        ("file", file + (", with external data" if data["external_data"] else "")),
    ]

"""``ortopt groups``: which nodes run together, where, and what passes between them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.option_groups import count_option, memory_option
from ortopt.cli.run_options import run_option
from ortopt.terminal_text import counted, one_line

if TYPE_CHECKING:
    from ortopt.partition.quotient import Edge, Quotient, Vertex

_MAX_ROWS = 40


@click.command("groups")
@click.argument("model")
@run_option("providers", help_="For a plain model: cpu, cuda, ...; the preferred one first.")
@click.option(
    "--group-policy",
    type=click.Choice(["cost", "literal"]),
    default="cost",
    show_default=True,
    help="For a plain model: group where it pays (cost), or everything that can be grouped (literal).",
)
@count_option("--group-arg-limit", 128, "For a plain model: most inputs and outputs that a group may have.")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--dot", is_flag=True, help="Print the graph of groups as text for Graphviz.")
@click.option("--draw", "picture", metavar="FILE.svg", help="Draw the groups of the main graph into this file.")
def command(
    model: str,
    providers: tuple[str, ...],
    group_policy: Any,
    group_arg_limit: int,
    as_json: bool,
    dot: bool,
    picture: str | None,
) -> None:
    """Show the fusion groups of a model.

    MODEL is a file, "-" for stdin, or zoo:NAME. The groups of a grouped model are shown as they are; a plain model is
    shown as -O4 would group it as it stands.
    """
    from ortopt.cli import files, models
    from ortopt.option_kinds import commas
    from ortopt.partition import partitioning, quotient
    from ortopt.partition.settings import PartitionOptions
    from ortopt.serialization.load import load

    if as_json and dot:
        raise click.UsageError("--json and --dot contradict each other")
    if picture == files.STREAM and (as_json or dot):
        raise click.UsageError("only one of --json, --dot and --draw can go to stdout")
    options = PartitionOptions(
        providers=commas(providers) or ("cpu",),
        policy=group_policy,
        argument_limit=group_arg_limit,
    )
    argument = models.resolve(model)
    files.check_outputs({"--draw": picture}, {"the model": argument.path})
    loaded = load(argument.source)
    files.check_not_read({"--draw": picture}, {"external data of the model": models.external_data(loaded)})
    partitioning.group(loaded, options)
    partitioning.prepare(loaded)
    quotients = quotient.quotients(loaded)
    if picture is not None:
        files.write_text(picture, quotient.as_svg(quotients[0]))
        if picture == files.STREAM:
            return
    if as_json:
        data = {"schema": 1, "model": argument.label, "graphs": [describe(graph) for graph in quotients]}
        click.echo(json.dumps(data, indent=2))
    elif dot:
        click.echo("".join(map(quotient.as_dot, quotients)), nl=False)
    else:
        for graph in quotients:
            _show(graph)


def describe(quotient: Quotient) -> dict[str, Any]:
    """A quotient graph as data that json can write.

    Args:
        quotient: The quotient graph.
    """
    from ortopt.reporting import report

    return {
        "graph": quotient.graph,
        "vertices": report.plain(quotient.vertices),
        "edges": [
            {
                "from": edge.source,
                "to": edge.target,
                "value": edge.value,
                "type": edge.type,
                "shape": None if edge.shape is None else list(edge.shape),
                "bytes": edge.nbytes,
            }
            for edge in quotient.edges
        ],
        "generations": quotient.generations(),
        "critical_path": quotient.critical_path(),
    }


def _show(quotient: Quotient) -> None:
    from ortopt.reporting import report, tables

    out = report.console(sys.stdout)
    groups = [vertex for vertex in quotient.vertices if vertex.kind == "group"]
    outside = [vertex for vertex in quotient.vertices if vertex.kind == "node"]
    counts = f"{counted(len(groups), 'group')}, {counted(len(outside), 'node')} outside"
    out.print(one_line(f"{quotient.graph}: {counts}"), highlight=False)
    if groups:
        out.print()
        rows = [_row(vertex) for vertex in groups[:_MAX_ROWS]]
        out.print(
            tables.table(("group", "provider", "nodes", "in", "weights", "out", "ops"), rows, text=7, prose="ops")
        )
        _more(out, len(groups))
    if outside:
        out.print()
        rows = [(vertex.name, ", ".join(vertex.ops)) for vertex in outside[:_MAX_ROWS]]
        out.print(tables.table(("node outside", "op"), rows, text=2))
        _more(out, len(outside))
    out.print()
    rows = [_edge_row(edge) for edge in quotient.edges[:_MAX_ROWS]]
    out.print(tables.table(("from", "to", "value", "type", "shape", "bytes"), rows, text=5))
    _more(out, len(quotient.edges))
    out.print()
    path = " → ".join(map(one_line, quotient.critical_path()))
    tables.say(out, f"critical path: {path}")
    out.print()


def _row(vertex: Vertex) -> tuple[object, ...]:
    ops = ", ".join(f"{count} {op}" for op, count in sorted(vertex.ops.items(), key=lambda item: (-item[1], item[0])))
    figures = vertex.nodes, len(vertex.inputs), len(vertex.weights), len(vertex.outputs)
    return (vertex.name, vertex.provider.removesuffix("ExecutionProvider"), *figures, ops)


def _edge_row(edge: Edge) -> tuple[object, ...]:
    from ortopt.reporting.interface import shape_text
    from ortopt.reporting.report import size

    nbytes = "?" if edge.nbytes is None else edge.nbytes if isinstance(edge.nbytes, str) else size(edge.nbytes)
    return edge.source, edge.target, edge.value, edge.type, shape_text(edge.shape), nbytes


def _more(out: Any, count: int) -> None:
    if count > _MAX_ROWS:
        out.print(f"and {count - _MAX_ROWS} more (--json shows all)", highlight=False)

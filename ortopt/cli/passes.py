"""``ortopt passes``: which transformers there are, and what each declares."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ortopt.registry import Kind

WHOLE_GRAPH = "whole graphs"
"""The group of transformers that start from no op."""

MARKS = {
    "reordered": "may round otherwise than before",
    "bounded": "may differ by a proven bound, beside rounding",
    "finite": "as reordered; a NaN or an infinity may spread to its neighbours (not with --no-finite-math)",
    "approximate": "changes numbers by more than rounding",
    "off": "runs only if --enable names it",
}
"""What the list says of a pass that is not exact, or not on by default; and what that means."""


@click.command("passes", short_help="List the passes, or show one.")
@click.argument("name", required=False)
@click.option("--by", type=click.Choice(["level", "root", "numerics"]), help="List the passes in groups.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def command(name: str | None, by: str | None, as_json: bool, markdown: bool) -> None:
    """List the passes, or show one.

    NAME is a pass, spelled as in the list or as its class (matmul_add_fusion is MatMulAddFusion), or a part of the
    names of those to list. --by puts passes into groups: by level, by the ops that they start from, or by what they do
    to numbers; a pass stands in each group that it belongs to.
    """
    if as_json and markdown:
        raise click.UsageError("--json and --markdown contradict each other")
    passes, is_list = _chosen(name, as_list=by is not None)
    if by is not None:
        groups = grouped(passes, by)
        if as_json:
            click.echo(json.dumps([{"group": group, "passes": members} for group, members in groups.items()], indent=2))
        elif markdown:
            click.echo("\n\n".join(f"## {group}\n\n{as_markdown(members)}" for group, members in groups.items()))
        else:
            _show_list(groups)
    elif as_json:
        click.echo(json.dumps(passes if is_list else passes[0], indent=2))
    elif markdown:
        click.echo(as_markdown(passes))
    elif is_list:
        _show_list({"": passes})
    else:
        _show_pass(passes[0])


def _chosen(name: str | None, *, as_list: bool) -> tuple[list[dict[str, Any]], bool]:
    """Descriptions of the passes that a name, or a part of one, stands for.

    Args:
        name: None is all passes.
        as_list: Whether the whole name of a pass is taken for a part of names.

    Returns:
        The descriptions; and whether they are a list, instead of the one pass of that name.

    Raises:
        UnknownTransformerError: If there are none.
    """
    from ortopt import registry
    from ortopt.transformer import name_key, snake_case

    installed = registry.installed()
    kinds = list(installed)
    if name:
        part_of_name = [kind for kind in kinds if name.lower() in kind.name or snake_case(name) in kind.name]
        is_pass = any(name_key(kind.name) == name_key(name) for kind in kinds)
        is_list = bool(part_of_name) and (as_list or not is_pass)
        kinds = part_of_name if is_list else [installed.find(name)]
    else:
        is_list = True
    return [describe(kind, installed.origin(kind.name)) for kind in kinds], is_list


def grouped(passes: Iterable[dict[str, Any]], by: str) -> dict[str, list[dict[str, Any]]]:
    """Passes by the heading of their group, in the order of the headings.

    Args:
        passes: Descriptions.
        by: "level", "root" or "numerics".
    """
    from ortopt.options import Numerics, TransformerLevel

    passes = list(passes)
    if by == "level":
        headings = [f"level {level.value}" for level in TransformerLevel]
        belongs = {row["name"]: [f"level {level}" for level in row["levels"]] for row in passes}
    elif by == "root":
        belongs = {row["name"]: row["roots"] or [WHOLE_GRAPH] for row in passes}
        headings = [*sorted({root for row in passes for root in row["roots"]}), WHOLE_GRAPH]
    else:
        headings = [numerics.value for numerics in Numerics]
        belongs = {row["name"]: [row["numerics"]] for row in passes}
    groups = {heading: [row for row in passes if heading in belongs[row["name"]]] for heading in headings}
    return {heading: members for heading, members in groups.items() if members}


def describe(kind: Kind, origin: str) -> dict[str, Any]:
    """What a transformer declares, as data that json can write.

    Args:
        kind: The class.
        origin: Where it comes from.
    """
    import dataclasses
    import inspect

    from ortopt.framework.pass_options import options_of
    from ortopt.graph.index import op_key
    from ortopt.options import Numerics
    from ortopt.reporting import costs
    from ortopt.rule import RewriteRule

    types = options_of(kind.Options)
    fuses = kind.produces if kind.fuses is None else kind.fuses
    formula, _, description = inspect.cleandoc(kind.__doc__ or "").partition("\n")
    return {
        "name": kind.name,
        "class": kind.__qualname__,
        "levels": [level.value for level in kind.levels],
        "formula": formula.rstrip("."),
        "description": description.strip(),
        "roots": list(kind.roots) if issubclass(kind, RewriteRule) else [],
        "numerics": kind.numerics.value,
        "error_bound": kind.error_bound,
        "default": kind.enabled and kind.numerics is not Numerics.APPROXIMATE,
        "apply_once": kind.apply_once,
        "after": list(kind.after),
        "providers": list(kind.providers),
        "produces": [op_key(*op) for op in kind.produces],
        "fuses": [op_key(*op) for op in fuses],
        "costs": costs.known(fuses, kind.weighs),
        "options": {
            field.name: {"type": types[field.name].shown, "default": _default(field)}
            for field in dataclasses.fields(kind.Options)
        },
        "offers_rewrites": kind.offers_rewrites,
        "origin": origin,
    }


def _default(field: Any) -> Any:
    value = field.default_factory() if callable(field.default_factory) else field.default
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def as_markdown(passes: Iterable[dict[str, Any]]) -> str:
    """Descriptions as a Markdown table."""
    lines = ["| pass | levels | what becomes what | numbers | by default |", "| --- | --- | --- | --- | --- |"]
    for row in passes:
        formula = row["formula"].replace("``", "`").replace("|", "\\|")
        on = "on" if row["default"] else "off"
        lines.append(f"| `{row['name']}` | {_list(row['levels'])} | {formula} | {row['numerics']} | {on} |")
    return "\n".join(lines)


def _show_list(groups: Mapping[str, list[dict[str, Any]]]) -> None:
    from ortopt.reporting import report, tables

    out = report.console(sys.stdout)
    for heading, passes in groups.items():
        if heading:
            out.print(f"{heading}: {len(passes)}", style="bold")
        rows = (
            (row["name"], row["formula"].replace("``", "`"), _list(row["levels"]), _list(_marks(row))) for row in passes
        )
        out.print(
            tables.table(("pass", "what becomes what", "levels", "marks"), rows, text=4, prose="what becomes what")
        )
        out.print()
    shown = {mark for passes in groups.values() for row in passes for mark in _marks(row)}
    for mark in (mark for mark in MARKS if mark in shown):
        tables.say(out, f"{mark}: {MARKS[mark]}")


def _marks(row: Mapping[str, Any]) -> list[str]:
    """What is not so of most passes."""
    return [mark for mark in (row["numerics"], "" if row["default"] else "off") if mark in MARKS]


def _show_pass(row: Mapping[str, Any]) -> None:
    from ortopt.reporting import costs, report, tables

    options = ", ".join(f"{name}={option['default']} ({option['type']})" for name, option in row["options"].items())
    rows = [
        ("levels", _list(row["levels"])),
        ("roots", _list(row["roots"]) or WHOLE_GRAPH),
        ("numbers", row["numerics"] + (f": {row['error_bound']}" if row["error_bound"] else "")),
        ("by default", "on" if row["default"] else f"off (--enable {row['name']})"),
        ("steps", "the first only" if row["apply_once"] else "until nothing changes"),
        ("after", _list(row["after"]) or "any"),
        ("providers", _list(row["providers"]) or "any"),
        ("new ops", _list(row["produces"]) or "of ai.onnx only"),
        *(("costs" * (not place), costs.in_words(cost)) for place, cost in enumerate(row["costs"])),
        ("options", options or "none"),
        ("rewrites", "offered one by one" if row["offers_rewrites"] else "a whole run is one rewrite"),
        ("origin", row["origin"]),
    ]
    out = report.console(sys.stdout)
    tables.say(out, f"{row['name']}: {row['formula']}".replace("``", "`"))
    if row["description"]:
        tables.say(out, f"\n{row['description']}".replace("``", "`"))
    out.print()
    out.print(tables.table(("", ""), rows, text=2, headless=True))


def _list(items: list[Any]) -> str:
    return ", ".join(map(str, items))

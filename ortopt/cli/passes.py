"""``ortopt passes``: which transformers there are, and what each declares."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ortopt.registry import Kind


@click.command("passes")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="As data.")
@click.option("--markdown", is_flag=True, help="As a Markdown table.")
def command(name: str | None, as_json: bool, markdown: bool) -> None:
    """List the passes, or show one.

    NAME is spelled as in the list, or as the class: matmul_add_fusion is MatMulAddFusion.
    """
    from ortopt import registry

    if as_json and markdown:
        raise click.UsageError("--json and --markdown contradict each other")
    installed = registry.installed()
    kinds = list(installed) if name is None else [installed.find(name)]
    found = [describe(kind, installed.origin(kind.name)) for kind in kinds]
    if as_json:
        click.echo(json.dumps(found if name is None else found[0], indent=2))
    elif markdown:
        click.echo(as_markdown(found))
    elif name is None:
        _show_all(found)
    else:
        _show_one(found[0])


def describe(kind: Kind, origin: str) -> dict[str, Any]:
    """What a transformer declares, as data that json can write.

    Args:
        kind: The class.
        origin: Where it comes from.
    """
    import dataclasses
    import inspect

    from ortopt.options import Numerics

    formula, _, description = inspect.cleandoc(kind.__doc__ or "").partition("\n")
    return {
        "name": kind.name,
        "class": kind.__qualname__,
        "levels": [level.value for level in kind.levels],
        "formula": formula.rstrip("."),
        "description": description.strip(),
        "numerics": kind.numerics.value,
        "default": kind.enabled and kind.numerics is not Numerics.APPROXIMATE,
        "apply_once": kind.apply_once,
        "after": list(kind.after),
        "providers": list(kind.providers),
        "produces": [f"{domain}::{op}" if domain else op for domain, op in kind.produces],
        "options": {
            field.name: {"type": str(field.type), "default": _default(field)}
            for field in dataclasses.fields(kind.Options)
        },
        "offers_rewrites": kind.offers_rewrites,
        "origin": origin,
    }


def _default(field: Any) -> Any:
    value = field.default_factory() if callable(field.default_factory) else field.default
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def as_markdown(found: list[dict[str, Any]]) -> str:
    """Descriptions as a Markdown table."""
    lines = ["| pass | levels | what becomes what | numbers | by default |", "| --- | --- | --- | --- | --- |"]
    for one in found:
        formula = one["formula"].replace("``", "`").replace("|", "\\|")
        on = "on" if one["default"] else "off"
        lines.append(f"| `{one['name']}` | {_list(one['levels'])} | {formula} | {one['numerics']} | {on} |")
    return "\n".join(lines)


def _show_all(found: list[dict[str, Any]]) -> None:
    from ortopt.reporting import report

    rows = (
        (
            one["name"],
            _list(one["levels"]),
            one["numerics"],
            "on" if one["default"] else "off",
            one["formula"].replace("``", "`"),
        )
        for one in found
    )
    table = report.table(("pass", "levels", "numbers", "default", "what becomes what"), rows, text=5)
    report.console(sys.stdout).print(table)


def _show_one(one: dict[str, Any]) -> None:
    from ortopt.reporting import report

    options = ", ".join(f"{name}={option['default']} ({option['type']})" for name, option in one["options"].items())
    rows = [
        ("levels", _list(one["levels"])),
        ("numbers", one["numerics"]),
        ("by default", "on" if one["default"] else f"off (--enable {one['name']})"),
        ("steps", "the first only" if one["apply_once"] else "until nothing changes"),
        ("after", _list(one["after"]) or "any"),
        ("providers", _list(one["providers"]) or "any"),
        ("new ops", _list(one["produces"]) or "of ai.onnx only"),
        ("options", options or "none"),
        ("rewrites", "offered one by one" if one["offers_rewrites"] else "a whole run is one rewrite"),
        ("origin", one["origin"]),
    ]
    out = report.console(sys.stdout)
    out.print(f"{one['name']}: {one['formula']}".replace("``", "`"), soft_wrap=True)
    if one["description"]:
        out.print(f"\n{one['description']}", soft_wrap=True)
    out.print()
    out.print(report.table(("", ""), rows, text=2, headless=True))


def _list(items: list[Any]) -> str:
    return ", ".join(map(str, items))

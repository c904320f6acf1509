"""The pages of the passes, from their classes, their tests and the table of costs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ortopt import registry
from ortopt.cli.passes import describe
from ortopt.reporting import costs
from tools.site.drawing import picture
from tools.site.examples import Example, reasons, smallest, text_of

NUMBERS = {
    "exact": "exact: the same bits for the same inputs",
    "reordered": "reordered: the same in real arithmetic, the last digits may differ",
    "quantized": "quantized: rounding, and one quantization step where rounding decides between two integers",
    "bounded": "bounded: beside rounding, the result differs from the exact one by at most a proven bound",
    "finite": "finite: rounding for finite numbers; a NaN or an infinity may spread to the elements around it"
    " (`--no-finite-math` leaves such passes out)",
    "approximate": "approximate: the result changes by more than rounding, so it is off unless `--enable` names it",
}
LEVELS = {
    1: "1: standard ONNX ops only, no provider assumed",
    2: "2: fusions for the chosen providers",
    3: "3: layout, and the forms that kernels run faster",
    4: "4: groups of nodes for each provider",
}


def described() -> list[dict[str, Any]]:
    """What each pass of ortopt declares."""
    installed = registry.installed()
    kinds = [kind for kind in installed if kind.__module__.startswith("ortopt.transformers.")]
    return [
        {**describe(kind, ""), "why": (sys.modules[kind.__module__].__doc__ or "").strip()}
        for kind in sorted(kinds, key=lambda kind: kind.name)
    ]


def index(passes: Iterable[Mapping[str, Any]]) -> str:
    """The page that lists all passes, by level.

    Args:
        passes: What they declare.
    """
    passes = list(passes)
    parts = [
        f"# Passes\n\nThere are {len(passes)} passes. Each has a page with its formula, an example before and after, "
        "and the reasons for which it leaves nodes alone. `ortopt passes` shows the same list on the command line, and "
        "`ortopt explain MODEL PASS` shows what a pass does to your model.\n"
    ]
    for level, meaning in LEVELS.items():
        members = [row for row in passes if level in row["levels"]]
        parts.append(f"## Level {meaning.replace(': ', ' — ', 1)}\n\n| pass | what becomes what | numbers |")
        parts.append("| --- | --- | --- |")
        parts += [f"| [{row['name']}]({row['name']}.md) | {_cell(row['formula'])} | {_marks(row)} |" for row in members]
        parts.append("")
    return "\n".join(parts)


def page(row: Mapping[str, Any], names: Iterable[str]) -> str:
    """The page of one pass.

    Args:
        row: What it declares (`described`).
        names: Names of all passes: those that are named on the page become links.
    """
    head = (row["formula"], row["why"], row["description"])
    sections = [f"# {row['name']}", *(text.replace("``", "`") for text in head)]
    sections += [_declarations(row, frozenset(names))]
    example = smallest(row["name"])
    if example is not None:
        sections += ["## Before and after", _example(example)]
    if row["costs"]:
        told = dict.fromkeys(f"- {costs.in_words(cost)}" for cost in row["costs"])
        sections += ["## What it costs", "How fast the new ops are, as measured:", "\n".join(told)]
    sections += ["## When it leaves nodes alone", _reasons(row["name"])]
    return "\n\n".join(section for section in sections if section) + "\n"


def _declarations(row: Mapping[str, Any], names: frozenset[str]) -> str:
    after = ", ".join(f"[{name}]({name}.md)" if name in names else name for name in row["after"])
    options = ", ".join(f"`{name}` = `{option['default']}`" for name, option in row["options"].items())
    rows = [
        ("levels", "; ".join(LEVELS[level] for level in row["levels"])),
        ("numbers", NUMBERS[row["numerics"]]),
        ("error bound", row["error_bound"]),
        ("by default", "on" if row["default"] else f"off; `--enable {row['name']}` turns it on"),
        ("starts from", ", ".join(f"`{root}`" for root in row["roots"]) or "whole graphs"),
        ("runs after", after or "any pass"),
        ("providers", ", ".join(row["providers"]) or "any"),
        ("new ops outside of ai.onnx", ", ".join(f"`{op}`" for op in row["produces"]) or "none"),
        ("fused ops", ", ".join(f"`{op}`" for op in row["fuses"])),
        ("options", options),
    ]
    lines = [f"| {name} | {_cell(text)} |" for name, text in rows if text]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _example(example: Example) -> str:
    before, after = example
    drawings = [picture(before, after, "gone"), picture(after, before, "new")]
    parts = ["This is the smallest model of its tests.", f"Before:\n\n```text\n{text_of(before)}\n```"]
    parts.append(f"After:\n\n```text\n{text_of(after)}\n```")
    if all(drawings):
        figures = zip(("before", "after"), drawings, strict=True)
        shown = "".join(f"<figure>{svg}<figcaption>{when}</figcaption></figure>" for when, svg in figures)
        parts.append(f'<div class="graphs">{shown}</div>')
    return "\n\n".join(parts)


def _reasons(name: str) -> str:
    told = reasons(name)
    ask = f"`ortopt explain MODEL {name}` shows for each node of your model which of them holds."
    if not told:
        return f"It gives no reasons of its own. {ask}"
    lines = "\n".join(f"- {_plain(reason)}" for reason in told)
    return f"These are the reasons that it gives (… stands for what the model fills in). {ask}\n\n{lines}"


def _plain(text: str) -> str:
    """A sentence without Markdown in it."""
    return "".join(f"\\{letter}" if letter in "*_<>[]`|" else letter for letter in text)


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _marks(row: Mapping[str, Any]) -> str:
    return row["numerics"] + ("" if row["default"] else ", off by default")

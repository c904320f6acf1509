"""The choices between equivalent forms that a table of costs decided in a run: which, at which sizes, by which row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ortopt.analysis.cost_tables import table_of
from ortopt.analysis.costs import Cost, in_sizes
from ortopt.analysis.speeds import between
from ortopt.reporting.costs import as_row, described, extents, on_each, table_in_words
from ortopt.reporting.tables import say, table
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.instrumentation.explanation import WeighedForm


def as_data(forms: Iterable[WeighedForm], path: str | None) -> dict[str, Any]:
    """The table that decided, and its choices, as data that json can write.

    Args:
        forms: What an `ortopt.instrumentation.explanation.Explanation` has recorded.
        path: The file of the table; None is the one that ships.
    """
    return {"costs": described(table_of(path)), "choices": weighed_forms(forms)}


def weighed_forms(forms: Iterable[WeighedForm]) -> list[dict[str, Any]]:
    """The choices that a table decided, each kind once, as data that json can write.

    Args:
        forms: What an `ortopt.instrumentation.explanation.Explanation` has recorded.
    """
    counts: dict[str, dict[str, Any]] = {}
    for one in forms:
        decision = one.decision
        cost = decision.cost
        known = None if cost is None else {**as_row(cost), "at": at_of(cost), "source": cost.source}
        row = {
            "pass": one.transformer,
            "form": str(decision.form),
            "taken": decision.taken,
            "smaller": decision.smaller,
            "cost": known,
            "asked": [extents(sizes) for sizes in decision.places],
        }
        counts.setdefault(repr(row), {**row, "count": 0})["count"] += 1
    return sorted(counts.values(), key=lambda row: (row["pass"], row["form"], not row["taken"], -row["count"]))


def why(row: Mapping[str, Any]) -> str:
    """What decided about a form, in a sentence for people.

    Args:
        row: Of `weighed_forms`.
    """
    cost = row["cost"]
    if cost is None:
        return "the table has no row of it: it is taken as its pass made it"
    if cost["speed"] is None:
        told = f"nobody has measured whether it is faster than {cost['instead_of']}"
    else:
        speed = between(*cost["speed"])
        told = f"{speed} {'as' if speed.endswith('fast') else 'than'} {cost['instead_of']}"
    told += f" ({cost['sizes']})" if cost["sizes"] else ""
    here = list(dict.fromkeys(text for sizes in row["asked"] if (text := _sizes_in_words(sizes, cost["at"]))))
    told += f"; here {'; or '.join(here)}" if here else ""
    if cost["verdict"] in ("neutral", "unknown"):
        told += "; the graph gets smaller" if row["smaller"] else "; the graph would not get smaller"
    return f"{told}; {on_each(cost)}" if cost["speeds"] else told


def _sizes_in_words(sizes: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    """The sizes that a row names, or those that say most."""
    usual = ("length", "past") if "past" in sizes else ("rows", "columns")
    shown = named if any(name in sizes for name in named) else usual
    return in_sizes({name: tuple(sizes[name]) for name in shown if name in sizes})


def show(data: Mapping[str, Any], out: Console) -> None:
    """Print the choices, if there were any.

    Args:
        data: Holds what `as_data` gives.
        out: The console.
    """
    if not data["choices"]:
        return
    out.print()
    say(out, f"chosen by the table of costs {table_in_words(data['costs'])}:", "bold")
    rows = (
        (row["form"], "taken" if row["taken"] else "left out", row["count"], one_line(why(row)))
        for row in data["choices"]
    )
    out.print(table(("form", "", "asked", "why"), rows, text=2, prose="why"))


def at_of(cost: Cost) -> dict[str, list[float | None]]:
    """The sizes of a row as json has them: null for no end.

    Args:
        cost: The row.
    """
    return {name: [low, None if high == math.inf else high] for name, (low, high) in cost.at.items()}


__all__ = ["as_data", "at_of", "show", "weighed_forms", "why"]

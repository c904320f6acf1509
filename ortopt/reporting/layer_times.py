"""Where the time of two models goes, by layer: a row for each layer with the time before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ortopt.reporting.tables import say, table
from ortopt.terminal_text import faster, one_line

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS: Final = 8
"""How many layers are shown; the slowest."""

Row: TypeAlias = Mapping[str, Any]


def joined(first: Mapping[str, float], second: Mapping[str, float] | None) -> list[dict[str, Any]]:
    """The layers of one model, or of two, with their milliseconds in a call, as data that json can write.

    Layers are joined by their names: a new node stands in that of the nodes that it was made from.

    Args:
        first: Milliseconds by layer of the first.
        second: Those of the second, or None.
    """
    names = list(dict.fromkeys((*first, *(second or ()))))
    after = {} if second is None else second
    rows = [{"layer": name, "original": first.get(name), "result": after.get(name)} for name in names]
    return [row for row in rows if row["original"] or row["result"]]


def show(profiles: Sequence[tuple[str, Mapping[str, Any] | None]], out: Console) -> None:
    """Print the layers of each model beside those of its result; of two models, those of both as they are.

    Args:
        profiles: The models' labels and profiles, from `ortopt.reporting.profiles.describe`.
        out: The console to print to.
    """
    told = [(label, profile["layers"]) for label, profile in profiles if profile is not None]
    if len(told) == 2:
        (first, own), (second, other) = told
        rows = joined(*({row["layer"]: row["original"] or 0.0 for row in rows} for rows in (own, other)))
        _show(rows, (first, second), out)
        return
    for _, rows in told:
        _show(rows, ("original", "result"), out)


def _show(rows: Sequence[Row], names: tuple[str, str], out: Console) -> None:
    """Print the slowest layers, in the order of the graph; nothing where there is only one, or only one model."""
    if len(rows) < 2 or not any(row["result"] for row in rows):
        return
    ranked = sorted(rows, key=lambda row: -max(row["original"] or 0.0, row["result"] or 0.0))
    shown = [row for row in rows if row in ranked[:MAX_ROWS]]
    out.print(table(("layer", *(f"{name}, ms" for name in names), "change"), map(_cells, shown)))
    if len(shown) < len(rows):
        say(out, f"{len(rows) - len(shown)} more layers take less (all of them with --json)")
    out.print()


def _cells(row: Row) -> Iterator[str]:
    before, after = row["original"], row["result"]
    yield one_line(row["layer"] or "(none)")
    yield from ("" if not one else f"{one:.3f}" for one in (before, after))
    yield faster(before / after) if before and after else "gone" if before else "new"

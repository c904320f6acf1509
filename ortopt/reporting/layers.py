"""Intermediate values of two models side by side, for people: the first that differs, and the error by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ortopt.reporting.tables import say, table
from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.verification.layer_rows import LayerRow, Layers, LayerSummary

MAX_LAYERS: Final = 9
"""How many layers are shown; the worst."""

MAX_ROWS: Final = 1000
"""How many values a table has at most."""

_MAX_NAMED: Final = 3


def show(layers: Layers, out: Console, *, every: bool = False) -> None:
    """Print how intermediate values compare.

    Args:
        layers: The values.
        out: The console to print to.
        every: Whether all values are shown, in the order of the graph.
    """
    out.print()
    for line in lines(layers):
        say(out, line)
    if every and layers.rows:
        out.print()
        out.print(_every(layers))
        if len(layers.rows) > MAX_ROWS:
            say(out, f"{len(layers.rows) - MAX_ROWS} more values (all of them with --json)")
    if layers.by_layer:
        out.print()
        shown = _worst(layers.by_layer)
        headers = ("layer", "worst value", "values", "differ", "absolute", "of scale")
        rows = [_summary(row) for row in shown]
        styles = ["bold" if row.differing else "" for row in shown]
        spare = ("values", "absolute", "worst value")
        out.print(table(headers, rows, text=2, spare=spare, styles=styles))
        if len(shown) < len(layers.by_layer):
            say(out, f"{len(layers.by_layer) - len(shown)} more layers with smaller errors (all of them with --json)")


def lines(layers: Layers) -> Iterator[str]:
    """What was compared and where it begins to differ, a line each."""
    where = f", on the input set where {layers.input_set}" if layers.input_set else ""
    yield (
        f"layers: {len(layers.rows)} of the {layers.result_values} values that B computes are compared with A's "
        f"({layers.by_name} by name, {layers.by_origin} by origin){where}"
    )
    yield from _left_out(layers)
    if layers.first is not None:
        yield f"the first that differs: {first_in_words(layers.first)}"
        if layers.agreeing:
            yield f"  it is computed from {_named(layers.agreeing)}: no difference there"
        begins = [row.value for row in layers.rows if row.begins]
        if len(begins) > 1:
            yield f"differences begin at {len(begins)} values: {_named(begins)}"
    made_up_for = [row.value for row in layers.rows if row.is_made_up_for]
    if made_up_for:
        what = "1 value differs" if len(made_up_for) == 1 else f"{len(made_up_for)} values differ"
        yield f"{what}, and what is computed from it agrees: {_named(made_up_for)}"
    elif layers.first is None and layers.rows:
        yield "no value differs"


def _left_out(layers: Layers) -> Iterator[str]:
    """What is not compared, and why."""
    if layers.nested:
        yield f"not compared: {layers.nested} values in subgraphs and functions of A"
    if layers.unlike:
        count = len(layers.unlike)
        yield f"not compared: {count} of one name, but of another type or shape in B: {_named(layers.unlike)}"
    if layers.not_run:
        yield f"not compared: {len(layers.not_run)} that could not be computed: {_named(layers.not_run)}"


def first_in_words(row: LayerRow) -> str:
    """A value that differs: which it is, what computes it, and by how much it differs; one line.

    Args:
        row: The value.
    """
    ops = row.op if row.op == row.result_op else f"{row.op}, in B {row.result_op}"
    made = f" of {row.made_by}" if row.made_by else ""
    layer = f"; layer {one_line(row.layer)}" if row.layer else ""
    return f"{quoted(row.value)} ({ops}{made}{layer}): {row.error.detail}"


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(map(quoted, names[:_MAX_NAMED]))
    return f"{shown} and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else shown


def _worst(rows: Sequence[LayerSummary]) -> list[LayerSummary]:
    """The layers to show, in the order of the graph: those that differ, then those of the largest error."""
    ranked = sorted(rows, key=lambda row: (row.differing == 0, -row.worst))
    chosen = ranked[:MAX_LAYERS]
    return [row for row in rows if row in chosen]


def _summary(row: LayerSummary) -> tuple[str, ...]:
    numbers = str(row.values), str(row.differing or ""), _number(row.absolute), _number(row.worst)
    return (row.layer or "(none)", row.worst_value, *numbers)


def _every(layers: Layers) -> object:
    headers = ("value", "op", "module", "type", "differs", "absolute", "of scale", "allowed")
    rows = layers.rows[:MAX_ROWS]
    cells = [
        (
            row.value,
            row.op if row.op == row.result_op else f"{row.op} → {row.result_op}",
            row.module,
            f"{row.dtype}{row.shape}",
            "first" if row is layers.first else "yes" if row.differs else "made up for" if row.is_made_up_for else "",
            _number(row.error.absolute),
            _number(row.error.worst),
            _number(row.error.tolerance),
        )
        for row in rows
    ]
    styles = ["bold" if row.differs else "" for row in rows]
    return table(headers, cells, text=5, spare=("module", "type", "absolute"), styles=styles)


def _number(number: float) -> str:
    return "not comparable" if math.isinf(number) else f"{number:.2g}"

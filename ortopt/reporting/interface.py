"""The inputs and outputs of a model: as plain data, and as tables for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import onnx_ir as ir

from ortopt.graph.facts import shape_of
from ortopt.interface.ports import dims, port
from ortopt.reporting.report import size
from ortopt.reporting.tables import table
from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.serialization.save import Saved

_GAP: Final = 3
"""Spaces between two columns."""

Dims = list[int | str | None]


def described(value: ir.Value) -> dict[str, Any]:
    """An input or output as data that json can write: name, type, declared shape.

    Args:
        value: The value.
    """
    one = port(value)
    return {"name": one.name, "type": one.type, "shape": None if one.shape is None else list(one.shape)}


def described_both(graph: ir.Graph) -> dict[str, list[dict[str, Any]]]:
    """The inputs and the outputs of a graph as data that json can write."""
    both = {"inputs": graph.inputs, "outputs": graph.outputs}
    return {kind: [described(value) for value in values] for kind, values in both.items()}


def inferred_shape(value: ir.Value) -> Dims | None:
    """What is known of the shape of an input or output that has been inferred, and else what its file declares."""
    proven = shape_of(value)
    declared = None if value.shape is None else list(dims(value.shape))
    if proven is None:
        return declared
    inferred = list(dims(proven))
    if declared is None or len(declared) != len(inferred):
        return inferred
    return [claim if dim is None else dim for claim, dim in zip(declared, inferred, strict=True)]


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """A shape for people."""
    if shape is None:
        return "unknown rank"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def changes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What has become of inputs and outputs, a line each.

    Args:
        rows: ``interface`` of a report.
    """
    for row in rows:
        before, after = row["before"], row["after"]
        name = f"{row['kind']} {quoted(before['name'])}"
        if after is None:
            yield f"{name} is left out"
            continue
        parts = [f"is called {quoted(after['name'])}"] if after["name"] != before["name"] else []
        if (after["type"], after["shape"]) != (before["type"], before["shape"]):
            parts.append(f"is {_declared(after)}, was {_declared(before)}")
        if row["left"]:
            parts.append(f"goes through {', '.join(row['left'])}")
        yield f"{name} {', '.join(parts)}"


def _declared(one: Mapping[str, Any]) -> str:
    return f"{one['type'] or 'unknown'} {shape_text(one['shape'])}"


def show(out: Console, data: Mapping[str, Any]) -> None:
    """Print a table of the inputs and one of the outputs, an empty line before each.

    Args:
        out: The console.
        data: ``inputs`` and ``outputs``, each a list from `described`; where a value has ``inferred``, that is shown.
    """
    for kind in ("inputs", "outputs"):
        rows = [
            (value["name"], value["type"] or "unknown", shape_text(value.get("inferred", value["shape"])))
            for value in data[kind]
        ]
        out.print()
        print_table(out, (kind, "type", "shape"), rows, text=3)


def written(saved: Saved) -> dict[str, Any]:
    """A model that a command has written, as data that json can write."""
    paths = {"output": saved.path, "data": saved.data_path}
    return {**{name: path and str(path) for name, path in paths.items()}, "bytes": saved.nbytes}


def show_written(out: Console, data: Mapping[str, Any], *told: str) -> None:
    """Print what a command has written: inputs and outputs, and the file.

    Args:
        out: The console to print to.
        data: What `written` and `described_both` return.
        told: What to say of the file, before and behind its size.
    """
    show(out, data)
    out.print()
    beside = f" with {one_line(data['data'])}" if data["data"] else ""
    first, *others = told
    facts = ", ".join((first, size(data["bytes"]), *others))
    out.print(f"written: {one_line(data['output'] or 'stdout')}{beside} ({facts})", soft_wrap=True)


def print_table(
    out: Console, headers: Sequence[str], rows: Sequence[Sequence[object]], *, text: int = 1, headless: bool = False
) -> None:
    """Print a table; where the console is too narrow for it, each row on lines of its own: names stay whole.

    Args:
        out: The console.
        headers: Headers of the columns.
        rows: The cells.
        text: Number of columns that hold text; the columns after them hold numbers.
        headless: Whether the headers are left out, and the last column may be folded between words.
    """
    cells = [tuple(one_line(cell) for cell in row) for row in rows]
    every = [*cells, *([] if headless else [tuple(headers)])]
    if headless or sum(max(map(len, column)) + _GAP for column in zip(*every, strict=True)) - _GAP <= out.width:
        out.print(table(headers, cells, text=text, headless=headless))
        return
    from rich.padding import Padding

    out.print(", ".join(headers), style="bold")
    for first, *others in cells:
        out.print(first, soft_wrap=True)
        out.print(Padding("   ".join(filter(None, others)), (0, 0, 0, 4)))


def number(count: int | str | None) -> str:
    """A number, or a formula, with commas between thousands."""
    if isinstance(count, int):
        return f"{count:,}"
    return "unknown" if count is None else re.sub(r"(?<![\w.])\d{4,}(?!\w)", lambda found: f"{int(found[0]):,}", count)

"""The inputs and outputs of a model: as plain data, and as tables for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import onnx_ir as ir

from ortopt.graph.facts import shape_of
from ortopt.graph.symbolic import is_invented, is_known
from ortopt.reporting.tables import table
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

_GAP: Final = 3
"""Spaces between two columns."""

Dims = list[int | str | None]


def described(value: ir.Value) -> dict[str, Any]:
    """An input or output as data that json can write: name, type, declared shape.

    Args:
        value: The value.
    """
    shape = None if value.shape is None else _dims(value.shape)
    return {"name": value.name, "type": None if value.type is None else str(value.type), "shape": shape}


def inferred_shape(value: ir.Value) -> Dims | None:
    """What is known of the shape of an input or output that has been inferred, and else what its file declares."""
    proven = shape_of(value)
    declared = None if value.shape is None else _dims(value.shape)
    if proven is None:
        return declared
    dims = _dims(proven)
    if declared is None or len(declared) != len(dims):
        return dims
    return [claim if dim is None else dim for claim, dim in zip(declared, dims, strict=True)]


def _dims(shape: ir.Shape) -> Dims:
    return [
        dim if isinstance(dim, int) else None if not is_known(dim) or is_invented(dim) else dim.value
        for dim in shape.dims
    ]


def shape_text(dims: Dims | None) -> str:
    """A shape for people."""
    if dims is None:
        return "unknown rank"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


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

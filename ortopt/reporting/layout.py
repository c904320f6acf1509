"""What of a model runs in ONNX Runtime's blocked layout, where images are reordered, and for what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortopt.analysis.blocked_layout import Layout, blocked_layout
from ortopt.graph.facts import dims_of
from ortopt.reporting.tables import say
from ortopt.terminal_text import node_name, one_line

if TYPE_CHECKING:
    from rich.console import Console

NAME = "layout"
"""What `ortopt explain` is asked for."""


def describe(model: ir.Model, level: int) -> dict[str, Any]:
    """Where the main graph of a result runs in blocks, as data that json can write.

    Args:
        model: The result.
        level: The highest level that ran.
    """
    layout = blocked_layout(model.graph)
    return {
        "schema": 1,
        "level": level,
        "kernels": len(layout.kernels),
        "reordered_in": [_row(value, layout, into=True) for value in layout.reordered_in],
        "reordered_out": [_row(value, layout, into=False) for value in layout.reordered_out],
        "reshapes": layout.reshapes,
    }


def _row(value: ir.Value, layout: Layout, *, into: bool) -> dict[str, Any]:
    """A value that is reordered: its producer, and the nodes that it is reordered for."""
    producer = value.producer()
    users = [use.node for use in value.uses() if (use.node in layout.kernels) is into]
    dims = dims_of(value)
    return {
        "value": value.name or "",
        "shape": None if dims is None else [dim if isinstance(dim, int) else str(dim) for dim in dims],
        "by": "" if producer is None else producer.op_type,
        "for": [{"node": node_name(node), "op": node.op_type} for node in users],
    }


def show(data: Mapping[str, Any], out: Console) -> None:
    """Print where a model runs in blocks.

    Args:
        data: From `describe`.
        out: The console to print to.
    """
    inside, outside = data["reordered_in"], data["reordered_out"]
    if not data["kernels"]:
        out.print("no node runs in ONNX Runtime's blocked layout")
        return
    say(
        out,
        f"{data['kernels']} nodes run in ONNX Runtime's blocked layout at level {data['level']}, with"
        f" {len(inside) + len(outside)} reorders and {data['reshapes']} reshapes",
    )
    for title, rows in (("into blocks", inside), ("out of blocks", outside)):
        if rows:
            out.print()
            say(out, f"{len(rows)} reordered {title}", "bold")
        for row in rows:
            shape = "?" if row["shape"] is None else "x".join(map(str, row["shape"]))
            users = ", ".join(f"{user['op']} {user['node']}" for user in row["for"]) or "an output"
            say(out, one_line(f"  {row['by'] or 'an input'} {row['value']} [{shape}], for {users}"))

"""The inputs and outputs of a model: as plain data, and as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortopt.graph.facts import shape_of
from ortopt.graph.symbolic import is_invented, is_known
from ortopt.reporting.report import table

if TYPE_CHECKING:
    from rich.table import Table

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


def tables(data: Mapping[str, Any]) -> Iterator[Table]:
    """A table of the inputs and one of the outputs.

    Args:
        data: ``inputs`` and ``outputs``, each a list from `described`.
    """
    for kind in ("inputs", "outputs"):
        rows = ((value["name"], value["type"] or "unknown", shape_text(value["shape"])) for value in data[kind])
        yield table((kind, "type", "shape"), rows, text=3)


__all__ = ["described", "inferred_shape", "shape_text", "tables"]

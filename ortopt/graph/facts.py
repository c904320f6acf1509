"""What inference knows about one value, and where it is kept.

The type of a value is ``value.type`` and the shape of an intermediate value is ``value.shape``. Three things do not fit
there and live in ``value.meta``, which is never written to a file:

- `SHAPE`: for inputs and outputs of graphs, whose declared shape is interface and stays as it is, what inference knows
  better: a pair (the declared shape that it was computed beside, the better shape). It is void once somebody assigns
  another shape to the value. Read it with `shape_of`.
- `CONTENTS`: the elements of a small integer or boolean tensor, of any rank, in row-major order. Read it with
  `contents`.
- `SCOPE`, on graphs: the number that makes invented symbols unique (internal to inference).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import onnx_ir as ir

from ortopt.graph.onnx_ir_internals import noted
from ortopt.graph.symbolic import UNKNOWN, Dim, canonical

SHAPE = "ortopt.shape"
CONTENTS = "ortopt.contents"
SCOPE = "ortopt.scope"
OPSETS = "ortopt.opsets"

MOST_ELEMENTS = 64
"""Tensors with more elements are data, and not shapes."""

Dims: TypeAlias = tuple[Dim, ...]

INTEGERS = frozenset(
    {
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
        ir.DataType.BOOL,
    }
)
"""The types whose contents are tracked; booleans are 0 and 1."""


@lru_cache(1 << 14)
def shape_from(dims: Dims) -> ir.Shape:
    """The shape with these dimensions; frozen, and shared between all values that have it."""
    return ir.Shape(dims, frozen=True)


def shape_of(value: ir.Value) -> ir.Shape | None:
    """The best known shape of a value, or None where even the rank is unknown.

    For an intermediate value it is ``value.shape``; for an input or output of a graph it may say more than the shape
    that the file declares.
    """
    shape = value.shape
    if value.is_graph_output() or value.is_graph_input():
        better = noted(value, SHAPE)
        if better is not None and better[0] is shape:
            found: ir.Shape = better[1]
            return found
    if shape is None and value.const_value is not None:
        return shape_from(tuple(value.const_value.shape))
    return shape


def dims_of(value: ir.Value) -> Dims | None:
    """The best known dimensions of a value in canonical form, or None where even the rank is unknown."""
    shape = shape_of(value)
    return None if shape is None else tuple(dim if isinstance(dim, int) else canonical(dim) for dim in shape)


def contents(value: ir.Value) -> Dims | None:
    """The elements of a small integer or boolean tensor of rank 0 or 1, or None where they are not known.

    Returns:
        At most `MOST_ELEMENTS` integers or expressions; an element that is not known is the unknown dimension. For a
        scalar one element. Booleans are 0 and 1.
    """
    shape = value.shape
    return None if shape is not None and len(shape) > 1 else all_contents(value)


def all_contents(value: ir.Value) -> Dims | None:
    """As `contents`, of any rank in row-major order: paddings are turned and cut as matrices before they are used."""
    if value.type is not None and value.dtype not in INTEGERS:
        return None
    known: Dims | None = noted(value, CONTENTS)
    if known is not None or value.const_value is None or value.is_graph_input():
        return known
    return elements(value.const_value)


def elements(tensor: ir.TensorProtocol, dims: Sequence[Dim] | None = None) -> Dims | None:
    """The elements of a small constant, as `all_contents` gives them; its dimensions spare asking it for them."""
    if tensor.dtype not in INTEGERS:
        return None
    size = tensor.size if dims is None else math.prod(dim for dim in dims if isinstance(dim, int))
    if size > MOST_ELEMENTS:
        return None
    try:
        found: list[int] = tensor.numpy().reshape(-1).tolist()
    except Exception:
        return None
    return tuple(map(int, found))


def set_better_shape(value: ir.Value, dims: Sequence[Dim] | None) -> None:
    """Keep what is known about an input or output of a graph beside its declared shape."""
    if dims is None:
        value.meta.pop(SHAPE, None)
    else:
        value.meta[SHAPE] = (value.shape, shape_from(tuple(dims)))


__all__ = [
    "CONTENTS",
    "INTEGERS",
    "MOST_ELEMENTS",
    "OPSETS",
    "SCOPE",
    "SHAPE",
    "UNKNOWN",
    "Dims",
    "all_contents",
    "contents",
    "dims_of",
    "elements",
    "set_better_shape",
    "shape_from",
    "shape_of",
]

"""The sizes of a node that its kernel's speed depends on, by name, from what is proven of its operands' shapes.

============  =====================================================================================================
``rows``      the product of the first operand's dimensions but the last
``columns``   its last dimension
``elements``  the product of all its dimensions
``batch``     its first dimension, of two or more
``channels``  its second dimension, of three or more
``length``    its last dimension but one, of three or more: positions of a sequence
``past``      positions that are in the cache already, of an attention op
``outputs``   the result's second dimension where a convolution has its channels, else its last: of a product
============  =====================================================================================================

A size that is not known is left out, and may be anything. What no single node shows (``parts``, products that become
one) is said by the rule that asks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import onnx_ir as ir

from ortopt.analysis.representative_sizes import Extent, Place
from ortopt.graph import symbolic
from ortopt.graph.facts import dims_of
from ortopt.graph.symbolic import Dim
from ortopt.semantics.domains import MICROSOFT

NAMES: Final = ("rows", "columns", "elements", "batch", "channels", "length", "past", "outputs")

_PAST: Final[Mapping[tuple[str, str], tuple[int, int]]] = {
    ("", "Attention"): (4, 2),
    (MICROSOFT, "Attention"): (4, 3),
    (MICROSOFT, "GroupQueryAttention"): (3, 2),
    (MICROSOFT, "MultiHeadAttention"): (6, 2),
}
"""Of attention ops the input that holds the cache, and its axis of positions."""

_CONVOLUTIONS: Final = frozenset({"Conv", "ConvTranspose", "FusedConv", "QLinearConv", "ConvInteger", "NhwcConv"})
_PRODUCTS: Final = frozenset(
    {"MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulNBits", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat"}
)
_MOST_RANGES: Final = 6
"""Symbols in ranges of which all combinations of ends are looked at."""


def sizes_of(node: ir.Node, place: Place | None = None) -> dict[str, Extent]:
    """What is known of a node's sizes, each as its least and its greatest value.

    Args:
        node: The node.
        place: Sizes of symbolic dimensions; the others are not known.
    """
    return evaluated(_factors(node), place or {})


def evaluated(factors: Mapping[str, Sequence[Dim]], place: Place) -> dict[str, Extent]:
    """The products of dimensions, as far as they are known.

    Args:
        factors: Dimensions by the name of their product.
        place: Sizes of symbolic dimensions.
    """
    extents = {name: _product(dims, place) for name, dims in factors.items()}
    return {name: extent for name, extent in extents.items() if extent is not None}


def _factors(node: ir.Node) -> dict[str, Sequence[Dim]]:
    """The dimensions that make up each of a node's sizes."""
    dims = _dims(node.inputs[0] if node.inputs else None)
    factors: dict[str, Sequence[Dim]] = {}
    if dims:
        factors |= {"rows": dims[:-1], "columns": dims[-1:], "elements": dims}
        factors |= {"batch": dims[:1]} if len(dims) > 1 else {}
        factors |= {"channels": dims[1:2], "length": dims[-2:-1]} if len(dims) > 2 else {}
    if (node.domain, node.op_type) in _PAST:
        factors |= _past(node)
    results = _dims(node.outputs[0] if node.outputs else None)
    if results and len(results) > 1 and node.op_type in _CONVOLUTIONS | _PRODUCTS:
        factors["outputs"] = results[1:2] if node.op_type in _CONVOLUTIONS else results[-1:]
    return factors


def _past(node: ir.Node) -> dict[str, Sequence[Dim]]:
    index, axis = _PAST[node.domain, node.op_type]
    if len(node.inputs) <= index or node.inputs[index] is None:
        return {"past": (0,)}
    dims = _dims(node.inputs[index])
    return {"past": dims[axis : axis + 1]} if dims and len(dims) > axis else {}


def _dims(value: ir.Value | None) -> Sequence[Dim] | None:
    return None if value is None else dims_of(value)


def _product(dims: Sequence[Dim], place: Place) -> Extent | None:
    """The least and the greatest value of a product of dimensions; None where that is not known."""
    if all(isinstance(dim, int) for dim in dims):
        number = math.prod(dim for dim in dims if isinstance(dim, int))
        return number, number
    names = sorted(frozenset().union(*map(symbolic.symbols, dims)))
    if any(name not in place for name in names):
        return None
    values = [_at(dims, corner) for corner in _corners(names, place)]
    numbers = [value for value in values if value is not None]
    return (min(numbers), max(numbers)) if numbers and len(numbers) == len(values) else None


def _at(dims: Iterable[Dim], sizes: Mapping[str, int]) -> int | None:
    """A product of dimensions at some sizes; None where an expression makes none, as a negative one does."""
    values = [dim if isinstance(dim, int) else symbolic.substitute(dim, sizes) for dim in dims]
    known = [value for value in values if isinstance(value, int) and value >= 0]
    return math.prod(known) if len(known) == len(values) else None


def _corners(names: Sequence[str], place: Place) -> Iterable[dict[str, int]]:
    """The ends of all ranges, combined: between them a size that grows with each of its symbols has no other end."""
    ranges = [name for name in names if place[name][0] != place[name][1]]
    if len(ranges) > _MOST_RANGES:
        return ({name: place[name][end] for name in names} for end in (0, 1))
    fixed = {name: place[name][0] for name in names}
    ends = itertools.product(*(place[name] for name in ranges))
    return (fixed | dict(zip(ranges, corner, strict=True)) for corner in ends)


__all__ = ["NAMES", "evaluated", "sizes_of"]

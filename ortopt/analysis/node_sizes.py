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
from typing import Final, TypeAlias

import onnx_ir as ir

from ortopt.analysis.dimensions import dimension_names, summands
from ortopt.graph import symbolic
from ortopt.graph.facts import dims_of
from ortopt.graph.symbolic import Dim
from ortopt.semantics.op_traits import PAST_KEYS

NAMES: Final = ("rows", "columns", "elements", "batch", "channels", "length", "past", "outputs")

_CONVOLUTIONS: Final = frozenset({"Conv", "ConvTranspose", "FusedConv", "QLinearConv", "ConvInteger", "NhwcConv"})
_PRODUCTS: Final = frozenset(
    {"MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MatMulNBits", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat"}
)
_MAX_RANGES: Final = 6
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
    if (node.domain, node.op_type) in PAST_KEYS:
        factors |= _past(node)
    results = _dims(node.outputs[0] if node.outputs else None)
    if results and len(results) > 1 and node.op_type in _CONVOLUTIONS | _PRODUCTS:
        factors["outputs"] = results[1:2] if node.op_type in _CONVOLUTIONS else results[-1:]
    return factors


def _past(node: ir.Node) -> dict[str, Sequence[Dim]]:
    index, axis = PAST_KEYS[node.domain, node.op_type]
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
    if len(ranges) > _MAX_RANGES:
        return ({name: place[name][end] for name in names} for end in (0, 1))
    fixed = {name: place[name][0] for name in names}
    ends = itertools.product(*(place[name] for name in ranges))
    return (fixed | dict(zip(ranges, corner, strict=True)) for corner in ends)


DECODE_STATE: Final = 128
"""Positions in the caches of a decoder that is given one token."""

TEXTS: Final = (16, 128)
"""Tokens of a text."""

IMAGE, FRAMES, SAMPLES = 224, 128, 16000
"""Rows and columns of an image; positions of a sequence of vectors; samples of a signal."""

LENGTH_BY_RANK: Final = {2: SAMPLES, 3: FRAMES, 4: IMAGE}

Extent: TypeAlias = tuple[int, int]
"""The least and the greatest size that a dimension may have."""

Place: TypeAlias = Mapping[str, Extent]
"""One way to call a model: the sizes of its symbolic dimensions."""


def representative_sizes(
    model: ir.Model, given: Mapping[str, int], expected: Mapping[str, Extent] | None = None
) -> list[dict[str, int]]:
    """Sizes of the symbolic dimensions of a model's inputs, several times where speed depends on them.

    The batch, the first dimension of an input, is 1. Symbols in dimensions of integer inputs count tokens; those that
    occur in float inputs alone count positions of a cache where there are tokens, else rows, frames or samples. A
    dimension without a name counts as a symbol named ``x[2]``, after its input and its axis.

    Args:
        model: The model.
        given: Sizes that the caller has chosen; they stay.
        expected: Sizes that the caller expects; of a range both ends.

    Returns:
        One mapping for each way to call the model; a decoder's first one is a single token. Symbols that are sums of
        others by their names are left out.
    """
    every: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
    for end in (0, 1):
        chosen = {name: extent[end] for name, extent in (expected or {}).items()} | dict(given)
        for sizes in _at_chosen(model, chosen):
            every.setdefault(tuple(sorted(sizes.items())), sizes)
    return list(every.values())


def representative_places(model: ir.Model, expected: Mapping[str, Extent]) -> tuple[Place, ...]:
    """The same as ranges: what is expected in a range is anywhere in it.

    Args:
        model: The model.
        expected: Sizes that the caller expects.

    Returns:
        One mapping for each way to call the model, with the symbols that are sums of others.
    """
    lows = {name: low for name, (low, _) in expected.items()}
    places = []
    for sizes in _at_chosen(model, lows):
        place = {name: (size, size) for name, size in sizes.items()} | dict(expected)
        places.append(_with_sums(model, place))
    return tuple(places)


def _with_sums(model: ir.Model, place: dict[str, Extent]) -> Place:
    """Sizes with those that are sums of others by their names."""
    names = _symbols_of_inputs(model)
    for name in names:
        parts = summands(name, names)
        if name not in place and parts and all(part in place for part in parts):
            place[name] = sum(place[part][0] for part in parts), sum(place[part][1] for part in parts)
    return place


def _at_chosen(model: ir.Model, given: Mapping[str, int]) -> list[dict[str, int]]:
    """Sizes of a model's symbolic dimensions, as far as they are not given."""
    tokens, states, batch = _symbols(model)
    open_tokens = [name for name in tokens if name not in given]
    open_states = [name for name in states if name not in given]
    fixed = {name: 1 for name in batch if name not in given} | dict(given)
    if tokens and states:
        decode = dict.fromkeys(open_tokens, 1) | dict.fromkeys(open_states, DECODE_STATE)
        prefill = dict.fromkeys(open_tokens, TEXTS[-1]) | dict.fromkeys(open_states, 0)
        every = [decode, prefill]
    elif tokens:
        every = [dict.fromkeys(open_tokens, length) for length in TEXTS]
    else:
        every = [{name: states[name] for name in open_states}]
    distinct = {tuple(sorted((fixed | sizes).items())): fixed | sizes for sizes in every}
    return list(distinct.values())


def _symbols_of_inputs(model: ir.Model) -> list[str]:
    """The symbols of the dimensions of all inputs that must be given, each once."""
    return list(
        dict.fromkeys(
            name
            for value in model.graph.inputs
            if not value.is_initializer() and value.shape is not None
            for axis, dim in enumerate(value.shape)
            for name in dimension_names(value.name or "", axis, dim)
        )
    )


def _symbols(model: ir.Model) -> tuple[list[str], dict[str, int], set[str]]:
    """Symbols that count tokens; others, with a length for each; and those of batches."""
    names = _symbols_of_inputs(model)
    free = {name for name in names if not summands(name, names)}
    tokens: dict[str, None] = {}
    states: dict[str, int] = {}
    batch: set[str] = set()
    for value in model.graph.inputs:
        if value.is_initializer() or value.shape is None:
            continue
        rank = len(value.shape)
        for axis, dim in enumerate(value.shape):
            within = free.intersection(dimension_names(value.name or "", axis, dim))
            if axis == 0 and rank > 1:
                batch |= within
            elif value.dtype is not None and value.dtype.is_integer():
                tokens |= dict.fromkeys(sorted(within))
            else:
                states |= dict.fromkeys(sorted(within), LENGTH_BY_RANK.get(rank, FRAMES))
    lengths = {name: length for name, length in states.items() if name not in tokens and name not in batch}
    return [name for name in tokens if name not in batch], lengths, batch

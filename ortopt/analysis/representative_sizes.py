"""Sizes at which forms are compared and models are timed where inputs leave them open: one token and many, an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import onnx_ir as ir

from ortopt.analysis.dimensions import summands
from ortopt.graph import symbolic

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
    occur in float inputs alone count positions of a cache where there are tokens, else rows, frames or samples.

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
    shapes = (value.shape for value in model.graph.inputs if not value.is_initializer() and value.shape is not None)
    return list(dict.fromkeys(name for shape in shapes for dim in shape for name in sorted(symbolic.symbols(dim))))


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
            within = symbolic.symbols(dim) & free
            if axis == 0 and rank > 1:
                batch |= within
            elif value.dtype is not None and value.dtype.is_integer():
                tokens |= dict.fromkeys(sorted(within))
            else:
                states |= dict.fromkeys(sorted(within), LENGTH_BY_RANK.get(rank, FRAMES))
    lengths = {name: length for name, length in states.items() if name not in tokens and name not in batch}
    return [name for name in tokens if name not in batch], lengths, batch


__all__ = ["Extent", "Place", "representative_places", "representative_sizes"]

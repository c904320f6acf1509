"""Sizes at which a model is timed where its inputs leave them open: one token and many, a short text and a long one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx_ir as ir

from ortopt.graph import symbolic
from ortopt.verification.inputs import Interface

DECODE_STATE: Final = 128
"""Positions in the caches of a decoder that is given one token."""

TEXTS: Final = (16, 128)
"""Tokens of a text."""

IMAGE, FRAMES, SAMPLES = 224, 128, 16000
"""Rows and columns of an image; positions of a sequence of vectors; samples of a signal."""

LENGTH_BY_RANK: Final = {2: SAMPLES, 3: FRAMES, 4: IMAGE}


def representative_sizes(model: ir.Model, given: Mapping[str, int]) -> list[dict[str, int]]:
    """Sizes of the symbolic dimensions of a model's inputs, several times where speed depends on them.

    The batch, the first dimension of an input, is 1. Symbols in dimensions of integer inputs count tokens; those that
    occur in float inputs alone count positions of a cache where there are tokens, else rows, frames or samples.

    Args:
        model: The model.
        given: Sizes that the caller has chosen; they stay.

    Returns:
        One mapping for each way to call the model; a decoder's first one is a single token. Symbols that are sums of
        others by their names are left out.
    """
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


def _symbols(model: ir.Model) -> tuple[list[str], dict[str, int], set[str]]:
    """Symbols that count tokens; others, with a length for each; and those of batches."""
    free = set(Interface(model).free_symbols)
    tokens: dict[str, None] = {}
    states: dict[str, int] = {}
    batch: set[str] = set()
    for value in model.graph.inputs:
        if value.is_initializer() or value.shape is None:
            continue
        rank = len(value.shape)
        for axis, dim in enumerate(value.shape):
            names = symbolic.symbols(dim) & free
            if axis == 0 and rank > 1:
                batch |= names
            elif value.dtype is not None and value.dtype.is_integer():
                tokens |= dict.fromkeys(sorted(names))
            else:
                states |= dict.fromkeys(sorted(names), LENGTH_BY_RANK.get(rank, FRAMES))
    lengths = {name: length for name, length in states.items() if name not in tokens and name not in batch}
    return [name for name in tokens if name not in batch], lengths, batch


__all__ = ["representative_sizes"]

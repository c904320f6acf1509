"""What the ops for a block of attention have in common: their operands, and what their results stand for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, dtype, opset
from ortopt.patterns.attention.block import Attention
from ortopt.patterns.attention.emptiness import check_standard_op
from ortopt.views.layouts import size_along

STANDARD_FROM = 23
"""The version of ai.onnx that has Attention."""


def has_standard_op(block: Attention) -> bool:
    """Whether ai.onnx has an op for a block, whose kernel runs wherever the block does, or in an If around it."""
    if block.keys_first or opset(block.core[0]) < STANDARD_FROM:
        return False
    try:
        check_standard_op(block)
    except Refusal:
        return False
    return True


def check_layouts(block: Attention) -> None:
    """Refuse operands that cannot be brought into the layout that is wanted.

    Raises:
        Refusal: If a size that a layout needs is not known.
    """
    block.queries.check_layout(flat=block.flat or block.keys_first)
    for part in (block.keys, block.values):
        part.check_layout(flat=block.flat and not block.keys_first)


def operands(block: Attention) -> list[ir.Value]:
    """Queries, keys and values: with heads side by side where there are such ones, else with heads first."""
    others = (block.keys, block.values)
    query = queries(block, flat=block.keys_first or block.flat)
    if block.keys_first:
        return [query, *(_repeated(part.heads_first(), part.count, block.queries.count) for part in others)]
    return [query, *(part.merged() if block.flat else part.heads_first() for part in others)]


def queries(block: Attention, *, flat: bool) -> ir.Value:
    """The queries, multiplied by what those of each head are.

    Args:
        block: The block.
        flat: Whether heads stand side by side, else first.
    """
    own = block.queries
    value = own.merged() if flat else own.heads_first()
    if not block.by_head:
        return value
    numbers = np.array(block.by_head, dtype(own.views[0].value).numpy())
    numbers = np.repeat(numbers, own.size) if flat else numbers.reshape(-1, 1, 1)
    return ir.node("Mul", [value, constant(numbers)]).outputs[0]


def _repeated(value: ir.Value, count: int, wanted: int) -> ir.Value:
    """Heads, [batch, heads, length, size], each as often as query heads share it."""
    if count == wanted:
        return value
    heads = np.arange(wanted, dtype=np.int64) // (wanted // count)
    return ir.node("Gather", [value, constant(heads)], {"axis": 1}).outputs[0]


def key_positions(block: Attention) -> ir.Value:
    """How many keys there are, with those of a past: known before they are put together."""
    new = block.keys.positions()
    if block.past is None:
        return new
    return ir.node("Add", [size_along(block.past.key, 2), new]).outputs[0]


def bias_of_rank_4(block: Attention) -> ir.Value:
    """What is added to the scores of a block that adds something, with a row for each query: as kernels want it."""
    assert block.bias is not None
    outside = block.past is None or block.bias.whole  # else the keys are not put together yet
    length = None if outside else key_positions(block)
    total = block.bias.full(block.bias.build(), block.queries, block.read_keys, length)
    return block.bias.of_rank_4(total, opset(block.core[0], ""))


def replacements(block: Attention, results: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """What new values stand for.

    Args:
        block: The block.
        results: The result of an op for it, and the present keys and values if there is a past.
    """
    result, *presents = results
    replaced = block.give(result)
    if block.past is not None:
        replaced |= dict(zip((block.past.present_key, block.past.present_value), presents, strict=True))
    return replaced


__all__ = [
    "STANDARD_FROM",
    "bias_of_rank_4",
    "check_layouts",
    "has_standard_op",
    "key_positions",
    "operands",
    "queries",
    "replacements",
]

"""What the ops for a block of attention have in common: their operands, and what their results stand for."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, opset
from ortopt.patterns.attention.block import Attention, check_sizes_are_positive

STANDARD_FROM = 23
"""The version of ai.onnx that has Attention."""


def has_standard_op(block: Attention) -> bool:
    """Whether ai.onnx has an op for a block, whose kernel runs wherever the block does."""
    if block.keys_first or opset(block.core[0]) < STANDARD_FROM:
        return False
    try:
        check_sizes_are_positive(block)
    except Refusal:
        return False
    return True


def operands(block: Attention) -> list[ir.Value]:
    """Queries, keys and values: with heads side by side where there are such ones, else with heads first."""
    heads = (block.queries, block.keys, block.values)
    return [part.merged() if block.flat else part.heads_first() for part in heads]


def replacements(block: Attention, results: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
    """What new values stand for.

    Args:
        block: The block.
        results: The result of an op for it, and the present keys and values if there is a past.
    """
    result, *presents = results
    if not block.flat:
        replaced = {block.context: result}
    elif block.merged is not None:
        replaced = {block.merged: result}
    else:
        assert block.joined is not None
        split = constant([0, 0, block.queries.count, block.values.size])
        replaced = {block.joined: ir.node("Reshape", [result, split]).outputs[0]}
    if block.past is not None:
        replaced |= dict(zip((block.past.present_key, block.past.present_value), presents, strict=True))
    return replaced


__all__ = ["STANDARD_FROM", "has_standard_op", "operands", "replacements"]

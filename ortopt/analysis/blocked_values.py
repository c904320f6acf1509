"""Whether a value is in ONNX Runtime's blocked layout, as a cheap look around it tells."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.analysis.blocked_layout import BEFORE, CONVOLUTIONS, MICROSOFT, RANK, is_blocked_convolution
from ortopt.graph.match import is_constant, tensor_of

THROUGH: Final = BEFORE | {"HardSwish", "Gelu", "QuickGelu", "BatchNormalization", "MaxPool", "AveragePool"}
"""Ops behind a convolution that leave an image in blocks."""

_MOST_STEPS: Final = 4
"""How far `is_in_blocks` looks."""


def is_in_blocks(value: ir.Value, steps: int = _MOST_STEPS, known: dict[ir.Value, bool] | None = None) -> bool:
    """Whether a value comes out of a convolution in blocks, through ops that go on in them: a cheap look around it.

    Args:
        value: The value.
        steps: How many nodes to look through.
        known: What is known of values; what is found is entered. Paths meet again: each value is looked at once. One
            that was looked at from far away may be taken for none in blocks.
    """
    answers = {} if known is None else known
    if value not in answers:
        answers[value] = _comes_in_blocks(value, steps, answers)
    return answers[value]


def _comes_in_blocks(value: ir.Value, steps: int, known: dict[ir.Value, bool]) -> bool:
    node = value.producer()
    if node is None or steps == 0 or node.domain not in {"", MICROSOFT}:
        return False
    if node.op_type in CONVOLUTIONS:
        return is_blocked_convolution(node)
    if node.op_type in {"Add", "Sum", "Mul"}:
        gated = _gated(node)
        images = (
            [one for one in node.inputs if one is not None and not _is_channelwise(one)] if gated is None else [gated]
        )
        return bool(images) and all(is_in_blocks(one, steps - 1, known) for one in images)
    x = node.inputs[0] if node.op_type in THROUGH else None
    return x is not None and is_in_blocks(x, steps - 1, known)


def _is_channelwise(value: ir.Value) -> bool:
    """Whether a value is a constant of one number, or one a channel: an image goes on in blocks as a normalization."""
    if not is_constant(value):
        return False
    shape = tuple(tensor_of(value).shape)
    return len(shape) <= RANK and all(dim == 1 for axis, dim in enumerate(reversed(shape)) if axis != 2)


def _gated(node: ir.Node) -> ir.Value | None:
    """The x of a product ``x · Sigmoid(x)`` or ``x · HardSigmoid(x)``."""
    for x, factor in zip(node.inputs, reversed(node.inputs), strict=True) if len(node.inputs) == 2 else ():
        gate = None if factor is None or node.op_type != "Mul" else factor.producer()
        if x is not None and gate is not None and gate.op_type in {"Sigmoid", "HardSigmoid"} and gate.inputs[0] is x:
            return x
    return None


__all__ = ["is_in_blocks"]

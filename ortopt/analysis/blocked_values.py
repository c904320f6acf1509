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


def is_in_blocks(value: ir.Value, steps: int = _MOST_STEPS, known: set[ir.Value] | None = None) -> bool:
    """Whether a value comes out of a convolution in blocks, through ops that go on in them: a cheap look around it.

    Args:
        value: The value.
        steps: How many nodes to look through.
        known: Values that are in blocks; those that are found to be are added. For many steps: paths meet again.
    """
    if known is None or value not in known:
        if not _comes_in_blocks(value, steps, known):
            return False
        if known is not None:
            known.add(value)
    return True


def _comes_in_blocks(value: ir.Value, steps: int, known: set[ir.Value] | None) -> bool:
    node = value.producer()
    if node is None or steps == 0 or node.domain not in {"", MICROSOFT}:
        return False
    if node.op_type in CONVOLUTIONS:
        return is_blocked_convolution(node)
    if node.op_type in {"Add", "Sum", "Mul"}:
        images = [one for one in node.inputs if one is not None and not _is_channelwise(one)]
        return _is_gated(node, steps) or (bool(images) and all(is_in_blocks(one, steps - 1, known) for one in images))
    x = node.inputs[0] if node.op_type in THROUGH else None
    return x is not None and is_in_blocks(x, steps - 1, known)


def _is_channelwise(value: ir.Value) -> bool:
    """Whether a value is a constant of one number, or one a channel: an image goes on in blocks as a normalization."""
    if not is_constant(value):
        return False
    shape = tuple(tensor_of(value).shape)
    return len(shape) <= RANK and all(dim == 1 for axis, dim in enumerate(reversed(shape)) if axis != 2)


def _is_gated(node: ir.Node, steps: int) -> bool:
    """Whether a product is ``x · Sigmoid(x)`` or ``x · HardSigmoid(x)`` of an x in blocks."""
    for x, factor in zip(node.inputs, reversed(node.inputs), strict=True) if len(node.inputs) == 2 else ():
        gate = None if factor is None or node.op_type != "Mul" else factor.producer()
        if x is not None and gate is not None and gate.op_type in {"Sigmoid", "HardSigmoid"} and gate.inputs[0] is x:
            return is_in_blocks(x, steps - 1)
    return False


__all__ = ["is_in_blocks"]

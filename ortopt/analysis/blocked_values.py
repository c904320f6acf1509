"""Whether a value is in ONNX Runtime's blocked layout, as a cheap look around it tells."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.analysis.blocked_layout import BEFORE, CONVOLUTIONS, RANK, is_blocked_convolution
from ortopt.graph.match import is_constant, tensor_of
from ortopt.graph.walk import Question, walk
from ortopt.semantics.domains import MICROSOFT

THROUGH: Final = BEFORE | {"HardSwish", "Gelu", "QuickGelu", "BatchNormalization", "MaxPool", "AveragePool"}
"""Ops behind a convolution that leave an image in blocks."""

_MOST_STEPS: Final = 4
"""How far `is_in_blocks` looks."""


def is_in_blocks(value: ir.Value, steps: int = _MOST_STEPS) -> bool:
    """Whether a value comes out of a convolution in blocks, through ops that go on in them: a cheap look around it.

    Args:
        value: The value.
        steps: How many nodes to look through.
    """
    return walk(_comes_in_blocks, (value, steps), unknown=False)


def _comes_in_blocks(about: tuple[ir.Value, int]) -> Question[tuple[ir.Value, int], bool]:
    value, steps = about
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
        for image in images:
            if not (yield image, steps - 1):
                return False
        return bool(images)
    x = node.inputs[0] if node.op_type in THROUGH else None
    return x is not None and (yield x, steps - 1)


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

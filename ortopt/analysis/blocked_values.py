"""Whether a value is in ONNX Runtime's blocked layout, and whether two threads divide a convolution there.

A thread computes whole rows of four blocks of channels. An image has many rows; a signal that has become an image of
height 1 is one, and with 64 channels or fewer its kernel runs on one thread, however many there are. Kernels of the
usual layout divide the positions of a row as well, so a form that is faster with one thread may lose with two.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.analysis.blocked_layout import BEFORE, BLOCK, CONVOLUTIONS, RANK, is_blocked_convolution
from ortopt.graph import scope
from ortopt.graph.match import attribute, is_constant, is_op, is_used_once, shape_of, tensor_of
from ortopt.graph.walk import Question, walk
from ortopt.semantics.domains import MICROSOFT

POOLS: Final = frozenset({"AveragePool", "MaxPool"})
PARTS: Final = frozenset({"Clip", "LeakyRelu"})
"""Activations that go on in blocks as a part of a convolution only."""

THROUGH: Final = BEFORE | POOLS | {"HardSwish", "Gelu", "QuickGelu", "BatchNormalization"}
"""Ops behind a convolution that leave an image in blocks."""

_FULL: Final = 0.75
_MOST: Final = 128
"""How many values `is_in_blocks` asks about: residual blocks, one behind the other, are as deep as a network."""


def is_in_blocks(value: ir.Value) -> bool:
    """Whether a value comes out of convolutions in blocks, through ops that go on in them.

    Args:
        value: The value.
    """
    return walk(_comes_in_blocks, value, unknown=False, most=_MOST)


def _comes_in_blocks(value: ir.Value) -> Question[ir.Value, bool]:
    node = value.producer()
    if node is None or node.domain not in {"", MICROSOFT}:
        return False
    if node.op_type in CONVOLUTIONS:
        summand = node.inputs[3] if len(node.inputs) > 3 else None
        return is_blocked_convolution(node) and (summand is None or (yield summand))
    if node.op_type in {"Add", "Sum", "Mul"}:
        gated = _gated(node)
        images = (
            [one for one in node.inputs if one is not None and not _is_channelwise(one)] if gated is None else [gated]
        )
        for image in images:
            if not (yield image):
                return False
        return bool(images)
    if node.op_type == "Concat":
        for part in node.inputs:
            if part is None or not _fills_blocks(part) or not (yield part):
                return False
        return attribute(node, "axis", 0) == 1
    x = node.inputs[0] if node.op_type in THROUGH else None
    if x is None or (node.op_type in POOLS and not _fills_blocks(x)):
        return False
    if node.op_type in PARTS and not (is_op(x.producer(), "Conv") and is_used_once(x)):
        return False
    return (yield x)


def fills_most(channels: int) -> bool:
    """Whether channels fill most of the blocks that they need: with 8, half of one, nothing pays that brings them in.

    Args:
        channels: How many.
    """
    return channels >= _FULL * (channels + -channels % BLOCK)


def _fills_blocks(image: ir.Value) -> bool:
    """Whether the channels of an image are known, and fill whole blocks."""
    shape = shape_of(image)
    channels = None if shape is None or len(shape) != RANK else shape[1]
    return isinstance(channels, int) and channels % BLOCK == 0


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


CHANNELS_OF_A_THREAD: Final = 4 * BLOCK
"""Channels of a result that one thread computes at least."""

LARGEST_SHARE: Final = 0.55
"""What the busier of two threads may have of the work: with 80, 96, 160 and 192 channels of a signal two threads were
0.66 to 0.91 times as fast as with the kernel for signals, with 128 and 256 channels 1.0 and more."""


def is_divided(convolution: ir.Node, outputs: int, *, is_little: bool) -> bool:
    """Whether two threads divide a convolution of one row in blocks, or it need not gain by two.

    Args:
        convolution: The convolution; where the result runs with one thread, none has to be divided.
        outputs: The channels of the result.
        is_little: Whether there is so little to do that one thread is faster than two.
    """
    if is_little or scope.of_node(convolution).options.for_threads == 1:
        return True
    sets = -(-outputs // CHANNELS_OF_A_THREAD)
    return -(-sets // 2) * CHANNELS_OF_A_THREAD <= LARGEST_SHARE * outputs

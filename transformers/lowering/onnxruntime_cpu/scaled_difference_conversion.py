"""ONNX Runtime's blocked layout ends where one image is subtracted from another; two scaled images are added in blocks.

Networks that mix by pooling (EfficientFormer, MetaFormer) add, to what they pool, the scaled difference of both.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.analysis.kernels import CPU
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    dims,
    inputs,
    need,
    need_float32,
    operand_constant,
    operand_from,
    producer,
)
from ortopt.linear.channels import of_channels
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

RANK = 4
LARGEST_SCALE = 8.0
"""Both products are larger than the difference by this at most, and so is their rounding."""

MOST_STEPS = 100
"""How far back it looks for the convolutions: a stage of such a network is one chain of sums."""


class Found(Struct, frozen=True):
    """The sum, and what it is a sum of.

    Attributes:
        nodes: The difference, the product, and the sum.
        other: What the image is subtracted from.
        x: The image.
        scale: A factor for each channel.
    """

    nodes: tuple[ir.Node, ...]
    other: ir.Value
    x: ir.Value
    scale: np.ndarray


class ScaledDifferenceConversion(RewriteRule[Found]):
    """``x + c · (p - x)`` → ``(1 - c) · x + c · p`` for images in ONNX Runtime's blocked layout.

    A convolution takes the sum and the factors, one for each channel; a
    difference would leave the layout.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("channel_affine_conversion", "transpose_optimizer")
    roots = ("Add",)
    opsets = (7, NEWEST_OPSET)  # before, they broadcast by an attribute
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.FINITE  # two infinities, whose difference is no number, may have a sum
    lookback = 8

    def match(self, root: ir.Node) -> Found:
        """Two images of the same size in blocks, and a constant for each channel."""
        product, x = operand_from(root, "Mul")
        factor, between = operand_constant(product)
        difference = producer(between, "Sub")
        other, image = inputs(difference, 2)
        need(image is x, "it adds something else than what is subtracted", root)
        need_float32(x, "the blocked kernels are")
        size = dims(x, RANK)
        need(symbolic.same_shape(size, dims(other, RANK)), "the images are not of the same size", difference)
        channels = size[1]
        if not isinstance(channels, int):
            raise Refusal("the number of channels is not fixed", x)
        scale = of_channels(factor, channels, RANK)
        need(bool((np.abs(scale) <= LARGEST_SCALE).all()), "a factor is large, or no number", factor)
        blocked = is_in_blocks(x, MOST_STEPS) and is_in_blocks(other, MOST_STEPS)
        need(blocked, "the images are not in the blocked layout", root)
        return Found((difference, product, root), other, x, scale)

    def rewrite(self, found: Found) -> ir.Node:
        """Build both products, and their sum."""
        images = (found.x, 1 - found.scale), (found.other, found.scale)
        scaled = [ir.node("Mul", [image, _factors(numbers)]).outputs[0] for image, numbers in images]
        return ir.node("Add", scaled)


def _factors(numbers: np.ndarray) -> ir.Value:
    return constant(numbers.astype(np.float32).reshape(-1, 1, 1), FLOAT)

"""Convolutions of single precision: what they read, and new ones with constant weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt.analysis.blocked_layout import ALIGNED
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Dim,
    dims,
    inputs,
    is_constant,
    need,
    need_fixed,
    need_float32,
    optional,
    plain_attributes,
    static_dims,
    tensor_of,
)
from ortopt.patterns.convolutions import is_convolution
from ortopt.rule import FoundT
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._rules import FOR_BLOCKS, CpuRule

IMAGE: Final = 4
TO_CHANNELS_FIRST: Final = (0, 3, 1, 2)
TO_CHANNELS_LAST: Final = (0, 2, 3, 1)


def channels_first(value: ir.Value) -> ir.Value:
    """An image whose channels are last, with its channels first."""
    return ir.node("Transpose", [value], {"perm": TO_CHANNELS_FIRST}).outputs[0]


def channels_last(image: ir.Value) -> ir.Value:
    """An image with its channels last."""
    return ir.node("Transpose", [image], {"perm": TO_CHANNELS_LAST}).outputs[0]


def image_dims(image: ir.Value) -> tuple[Dim, int, int, int]:
    """The batch, and the sizes of an image's other axes, which fit blocks.

    Raises:
        Refusal: If they do not, or are not fixed.
    """
    batch, *sizes = dims(image, IMAGE)
    need_float32(image, FOR_BLOCKS)
    channels, height, width = need_fixed(sizes, "a size of the image is not fixed", image)
    need(min(channels, height, width) > 0, "the image is empty", image)
    need(channels % ALIGNED == 0, "the channels fit no blocks", image)
    return batch, channels, height, width


def convolves(node: ir.Node, image: ir.Value) -> bool:
    """Whether a node is a convolution of an image with weights that are known when the model is loaded."""
    if not is_convolution(node) or node.inputs[0] is not image or image in node.inputs[1:]:
        return False
    return node.inputs[1] is not None and is_constant(node.inputs[1])


CONVOLUTIONS = ("Conv", f"{MICROSOFT}::FusedConv")
"""Where there is none of them, nothing is in blocks of channels."""


class ConvRule(CpuRule[FoundT]):
    """A rule that gives a convolution another form, perhaps with its activation."""

    roots = CONVOLUTIONS
    produces = ((MICROSOFT, "FusedConv"),)
    fuses = ()


def convolution(root: ir.Node, rank: int = 4, why: str = FOR_BLOCKS) -> tuple[ir.Value, ir.Value, tuple[int, ...]]:
    """The images and the weights of a convolution, and the sizes of the weights.

    Args:
        root: A Conv or FusedConv.
        rank: The rank of both.
        why: What is for single precision only (see `need_float32`).

    Raises:
        Refusal: If it is of another type, or another value is added to its result.
    """
    x, weight = inputs(root, 2)
    need_float32(x, why)
    need(optional(root, 3) is None, "it adds another value", root)
    plain_attributes(root)
    return x, weight, static_dims(weight, rank)


def bias_of(root: ir.Node) -> ir.Value | None:
    """The bias of a convolution.

    Raises:
        Refusal: If it is computed.
    """
    bias = optional(root, 2)
    if bias is not None:
        tensor_of(bias)
    return bias


def convolved(
    x: ir.Value,
    weight: np.ndarray,
    bias: np.ndarray | ir.Value | None = None,
    attributes: dict[str, int | Sequence[int]] | None = None,
) -> ir.Value:
    """The result of a new convolution.

    Args:
        x: The images.
        weight: Its weights.
        bias: Its bias.
        attributes: Of the node.
    """
    added = constant(bias, FLOAT) if isinstance(bias, np.ndarray) else bias
    operands = [x, constant(np.ascontiguousarray(weight), FLOAT), *([] if added is None else [added])]
    return ir.node("Conv", operands, attributes).outputs[0]


def points(x: ir.Value, matrix: np.ndarray, bias: np.ndarray | ir.Value | None = None, axes: int = 2) -> ir.Value:
    """The channels of each point of images, multiplied by a matrix.

    Args:
        x: The images.
        matrix: [channels, outputs].
        bias: What is added to each output.
        axes: How many axes are behind the channels.
    """
    return convolved(x, matrix.T.reshape(*matrix.T.shape, *(1,) * axes), bias)

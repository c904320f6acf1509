"""A convolution of an image whose pixels were moved into channels by fours reads the image itself, at twice the stride.

The "focus" layer of YOLO v5 and YOLOX is one, and so is the "pixel unshuffle" of networks for superresolution.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_used_once,
    need,
    need_float32,
    plain_attributes,
    producer,
    same_dim,
    static_dims,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT

BLOCK = 2
"""Rows and columns of a block: with 4 it is as fast as before, or slower."""

FORM = Form("", "Conv", "of the image before SpaceToDepth")

CHANNELS_LAST, CHANNELS_FIRST = (0, 3, 5, 1, 2, 4), (0, 1, 3, 5, 2, 4)
"""Orders of a Transpose that moves the places within a block before the channels, or behind them."""


class Blocks(Struct, frozen=True):
    """How an image was taken apart.

    Attributes:
        nodes: What does it.
        image: What is taken apart.
        channels: Channels of the image.
        channel_first: Whether what is of one channel lies together, rather than what is of one place in a block.
    """

    nodes: tuple[ir.Node, ...]
    image: ir.Value
    channels: int
    channel_first: bool


class Found(Struct, frozen=True):
    """The convolution and what is before it, and how the image is taken apart."""

    nodes: tuple[ir.Node, ...]
    blocks: Blocks


class SpaceToDepthConvFusion(RewriteRule[Found]):
    """``Conv(SpaceToDepth(x))`` → ``Conv(x)`` with a kernel twice as large and twice the strides.

    The products are the same, and nothing is moved. That pays for images of few channels.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    after = ("space_to_depth_fusion",)
    lookback = 3
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (FORM,)
    produces = ((MICROSOFT, "FusedConv"),)
    fuses = ()
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A dense kernel that alone reads the blocks of an image with few channels."""
        moved, weight = inputs(root, 2)
        need_float32(moved, "the gain was measured")
        need(is_used_once(moved), "the blocks are used elsewhere", moved)
        blocks = _blocks(moved)
        need(blocks.channels > 0, "the image has no channels", blocks.image)
        check_faster(root, FORM, channels=blocks.channels)
        plain_attributes(root)
        conv = ops.Conv(root)
        need(conv.group == 1, "it has groups", root)
        need(set(conv.dilations) == {1}, "it has dilations", root)
        need(conv.auto_pad == "NOTSET", "its padding is not written out", root)
        need(is_constant(weight), "its weights are no constant", weight)
        read = static_dims(weight, rank=4)[1]
        need(read == blocks.channels * BLOCK * BLOCK, "it reads other channels", weight)
        return Found((root, *blocks.nodes), blocks)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution, with the weights of each place of a block side by side."""
        root = found.nodes[0]
        weight = array_of(root.inputs[1])
        outputs, _, rows, columns = weight.shape
        channels = found.blocks.channels
        if found.blocks.channel_first:
            places = weight.reshape(outputs, channels, BLOCK, BLOCK, rows, columns).transpose(0, 1, 4, 2, 5, 3)
        else:
            places = weight.reshape(outputs, BLOCK, BLOCK, channels, rows, columns).transpose(0, 3, 4, 1, 5, 2)
        kernel = (BLOCK * rows, BLOCK * columns)
        own = constant(np.ascontiguousarray(places).reshape(outputs, channels, *kernel), FLOAT)
        strides, pads = (
            [BLOCK * number for number in numbers] for numbers in (ops.Conv(root).strides, ops.Conv(root).pads)
        )
        operands = [found.blocks.image, own, *root.inputs[2:]]
        return ops.copied(root, operands, auto_pad=None, strides=strides, pads=pads, kernel_shape=kernel)


def _blocks(moved: ir.Value) -> Blocks:
    """The image whose places within blocks of 2x2 are the channels of a value.

    Raises:
        Refusal: If it is made of something else.
    """
    node = producer(moved, "SpaceToDepth", "Reshape")
    if node.op_type == "Reshape":
        return _shuffled(node)
    need(attribute(node, "blocksize", 0) == BLOCK, "the blocks are not of 2x2", node)
    (image,) = inputs(node, 1)
    channels = dims(image, 4)[1]
    if not isinstance(channels, int):
        raise Refusal("the number of channels is not fixed", image)
    return Blocks((node,), image, channels, channel_first=False)


def _shuffled(joined: ir.Node) -> Blocks:
    """Blocks that are moved by a Transpose between two Reshapes."""
    transpose = producer(inputs(joined, 1)[0], "Transpose")
    split = producer(inputs(transpose, 1)[0], "Reshape")
    image, apart, result = inputs(split, 1)[0], split.outputs[0], joined.outputs[0]
    between = (apart, transpose.outputs[0])
    need(all(map(is_used_once, between)), "the blocks are used elsewhere", joined)
    order = ops.Transpose(transpose).order
    need(order in (CHANNELS_LAST, CHANNELS_FIRST), "the Transpose moves no blocks into channels", transpose)
    batch, channels, height, width = dims(image, 4)
    if not isinstance(channels, int) or not isinstance(height, int) or not isinstance(width, int):
        raise Refusal("the image's size is not known", image)
    rows, columns = height // BLOCK, width // BLOCK
    wanted = (batch, channels, rows, BLOCK, columns, BLOCK)
    need(height % BLOCK == width % BLOCK == 0 < height * width, "the blocks do not fill the image", image)
    need(all(map(same_dim, dims(apart, 6), wanted)), "the blocks are not of 2x2", split)
    whole = (batch, channels * BLOCK * BLOCK, rows, columns)
    need(all(map(same_dim, dims(result, 4), whole)), "the blocks are joined otherwise", joined)
    return Blocks((joined, transpose, split), image, channels, channel_first=order == CHANNELS_FIRST)

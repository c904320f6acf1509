"""Convolutions whose outputs, groups or columns do not fill what ONNX Runtime's kernels compute at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph import scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, Code, array_of, before, dims, inputs, need, opset, static_dims, tensor_of
from ortopt.options import MEASURED_TARGETS, March, Numerics
from ortopt.patterns.convolutions import is_convolution
from ortopt.rule import Match
from ortopt.semantics.opset_changes import DEPTH_TO_SPACE_HAS_MODES_FROM, PADS_ARE_AN_INPUT_FROM
from ortopt.system import processor
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import ConvRule, bias_of, convolution
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED

BLOCKS = (8, 16)
"""On x86 processors without AVX-512, and with it."""


def blocks_that_count(node: ir.Node) -> tuple[int, ...]:
    """The sizes of blocks with which a form must pay: those of all processors, or with --march native that of this one.

    Args:
        node: A node of a graph, which says what the run allows.
    """
    own = processor.channel_block() if scope.of_node(node).options.march is March.NATIVE else None
    return BLOCKS if own is None else (own,)


SIDE = 2
FOUR_PIXELS = Form("", "Conv", "with four pixels as channels")

MIN_CHANNELS_OF_BLOCKS = 8
"""Input channels from which their number must be a multiple of 4: the kernels on blocks take no others."""


class FewOutputConvUnrolling(ConvRule[Match]):
    """``Conv(x)`` with few outputs → ``DepthToSpace(Conv(x))``, with four pixels as channels and strides of 2.

    A convolution computes blocks of channels at once: one with few outputs wastes most of each; four pixels fill it.

    ONNX Runtime's kernels on the CPU compute 16 output channels (8 without AVX-512) at a time, however few there are.
    The last convolution of decoders and superresolution has 1 to 4. Where four neighbouring pixels are channels of one,
    the kernel is one row and one column larger and reads every second place only: 16·k² multiplications a pixel become
    4·(k + 1)².

    It must be less work by what the transposition costs, on processors that compute 8 channels at once and on those
    that compute 16; with --march native on this one, which may have more outputs pay. The larger kernel holds zeros: a
    NaN or an infinity makes NaN of the pixels beside those that read it.
    """

    targets = MEASURED_TARGETS
    after = (
        "conv_add_fusion",
        "conv_mul_fusion",
        "resize_projection_reordering",
        "shuffled_conv_fusion",
        "upsampled_conv_decomposition",
    )
    weighs = (FOUR_PIXELS,)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Match:
        """A dense kernel, and a result of even height and width."""
        _, weight, (_, channels, *_) = convolution(root, why=MEASURED)
        modes = opset(root, "") >= DEPTH_TO_SPACE_HAS_MODES_FROM
        need(modes, "before opset 11 a DepthToSpace has no modes", root)
        taken = channels < MIN_CHANNELS_OF_BLOCKS or channels % 4 == 0
        need(taken, "the kernels on blocks take input channels by four", root)
        need(ops.Conv(root).is_plain, "it has groups, strides or dilations", root)
        need(min(ops.Conv(root).pads) >= 0, "its padding crops the image", root)
        height, width = dims(root.outputs[0], rank=4)[2:]
        even = symbolic.divides(SIDE, height) and symbolic.divides(SIDE, width)
        need(even, "height and width of the result are not known to be even", root)
        _check_outputs(root, height * width if isinstance(height, int) and isinstance(width, int) else None)
        tensor_of(weight)
        bias = bias_of(root)
        return Match((root,), lambda: _four_pixels(root, array_of(weight), bias))


def _four_pixels(root: ir.Node, weight: np.ndarray, bias: ir.Value | None) -> ir.Node:
    """Build the convolution with a kernel that is shifted for each of the four pixels."""
    outputs, channels, rows, columns = weight.shape
    own = np.zeros((outputs, SIDE, SIDE, channels, rows + 1, columns + 1), np.float32)
    for row, column in np.ndindex(SIDE, SIDE):
        own[:, row, column, :, row : row + rows, column : column + columns] = weight
    operands = [root.inputs[0], constant(own.reshape(-1, channels, rows + 1, columns + 1), FLOAT)]
    if bias is not None:
        operands.append(constant(np.repeat(array_of(bias), SIDE * SIDE), FLOAT))
    conv = ops.copied(root, operands, kernel_shape=None, auto_pad=None, strides=(SIDE, SIDE))
    return ir.node("DepthToSpace", conv.outputs, {"blocksize": SIDE, "mode": "CRD"})


def _check_outputs(root: ir.Node, pixels: int | None) -> None:
    """Refuse where the form is not known to be faster, on processors with blocks of 8 channels and with blocks of 16.

    With --march native, this processor's count alone.
    """
    outputs, channels, *kernel = static_dims(inputs(root, 2)[1], rank=4)
    need(outputs > 0, "it has no outputs", root)
    gain = min(_gain(outputs, kernel, block) for block in blocks_that_count(root))
    products = channels * kernel[0] * kernel[1]
    saving = int(100 * gain)
    check_faster(
        root, FOUR_PIXELS, outputs=outputs, kernel=min(kernel), saving=saving, products=products, pixels=pixels
    )


def _gain(outputs: int, kernel: list[int], block: int) -> float:
    """How much less work four pixels are where so many channels are computed at once."""
    pixels = SIDE * SIDE
    rows, columns = kernel
    before = math.ceil(outputs / block) * rows * columns
    after = math.ceil(outputs * pixels / block) * (rows + 1) * (columns + 1) / pixels
    return before / after


ELEMENTWISE = ("Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Gelu", "Add", "Mul")
"""What works on blocked layouts, between two convolutions."""

MAX_BETWEEN = 2


class GroupedConvMerging(ConvRule[Match]):
    """``Conv(x)`` with groups of fewer than 16 channels → with groups of 16, whose weights are block-diagonal.

    A convolution computes blocks of channels at once; groups that fill no block are computed slowly, one by one.

    ONNX Runtime's kernels for blocked layouts take groups of whole blocks, and groups of one channel. What lies between
    goes to a general kernel. Several groups with zeros beside their weights are one block.

    It gains behind another convolution, on processors that compute 16 channels at once: with --march native only. The
    weights hold zeros: a NaN or an infinity spreads to the groups that are merged with its own.
    """

    after = ("conv_add_fusion", "conv_mul_fusion")
    lookback = MAX_BETWEEN + 1
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Match:
        """Groups of 2 to 15 channels that fill blocks together, behind a convolution."""
        need(
            blocks_that_count(root) == (BLOCK,),
            "it pays where blocks are of 16 channels (--march native)",
            root,
            code=Code.OPTION,
        )
        x, weight, (outputs, channels, *_) = convolution(root, why=MEASURED)
        groups = ops.Conv(root).group
        need(groups > 1 and 1 < channels < BLOCK, "its groups fill blocks, or are of one channel", root)
        need(outputs == groups * channels, "its groups have other numbers of outputs than of inputs", root)
        need(BLOCK % channels == 0 and groups % (BLOCK // channels) == 0, "its groups fill no blocks together", root)
        above = before(x, *ELEMENTWISE, most=MAX_BETWEEN).producer()
        need(is_convolution(above), "it is behind no convolution, on whose layout it could work", x)
        tensor_of(weight)
        return Match((root,), lambda: _of_blocks(root, array_of(weight)))


def _of_blocks(root: ir.Node, weight: np.ndarray) -> ir.Node:
    """Build the convolution with zeros in each group for the channels of the others."""
    outputs, channels, *kernel = weight.shape
    blocks, merged = outputs // BLOCK, BLOCK // channels
    own = np.zeros((blocks, merged, channels, merged, channels, *kernel), np.float32)
    of_groups = weight.reshape(blocks, merged, channels, channels, *kernel)
    for place in range(merged):
        own[:, place, :, place] = of_groups[:, place]
    operands = [root.inputs[0], constant(own.reshape(outputs, BLOCK, *kernel), FLOAT), *root.inputs[2:]]
    return ops.copied(root, operands, group=blocks)


RANK: Final = 4
LEFT, RIGHT = 1, 3
"""Where the attribute has the columns of zeros."""

PADDED, PADDED_OF_ANY_WIDTH = (Form("", "Conv", variant) for variant in ("behind a Pad", "behind a Pad, of any width"))

BESIDE: Final = 0
"""The axis around a Pad. ONNX Runtime makes the Pad of an image a convolution's padding when it loads a model."""


class ConvPadDecomposition(ConvRule[Match]):
    """``Conv(x, w)`` with a wide kernel and padded columns → ``Conv(Pad(x), w)``.

    ONNX Runtime's blocked convolutions compute columns that read padding one by one, the others many at a time.

    With a wide kernel that is a large part of the image. Where the zeros are written beside the image first, all
    columns are computed many at a time.

    With few columns of zeros, or few products of each element, the copy costs what is saved; with many, the columns
    that are computed one by one read little but zeros, which they leave out. Convolutions of single channels have
    another kernel, in which padding costs little up to a hundred columns.
    """

    after = ("conv1d_conversion", "few_output_conv_unrolling", "tall_conv_conversion")
    weighs = (PADDED, PADDED_OF_ANY_WIDTH)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A dense kernel of constant finite weights."""
        x, weight, kernel = convolution(root)
        need(opset(root, "") >= PADS_ARE_AN_INPUT_FROM["Pad"], "pads are no input in this opset", root)
        conv = ops.Conv(root)
        pads = conv.pads
        need(set(conv.dilations) == {1}, "its kernel has gaps", root)
        need(min(pads) >= 0, "its padding crops the image", root)
        need(pads[LEFT] + pads[RIGHT] > 0, "no columns are padded", root)
        _check_columns(root, kernel, pads[LEFT] + pads[RIGHT])
        need(bool(np.isfinite(array_of(weight)).all()), "a weight is no finite number", weight)
        return Match((root,), lambda: _behind_pad(root, x, weight))


def _behind_pad(root: ir.Node, x: ir.Value, weight: ir.Value) -> ir.Node:
    """Build the Pad, of an image that stands alone along another axis."""
    pads = list(ops.Conv(root).pads)
    amounts = np.zeros((2, RANK + 1), np.int64)
    amounts[:, -1] = pads[LEFT], pads[RIGHT]
    version = opset(root, "")
    padded = ir.node("Pad", [ops.unsqueezed(x, [BESIDE], version), constant(amounts.reshape(-1))]).outputs[0]
    pads[LEFT] = pads[RIGHT] = 0
    return ops.copied(root, [ops.squeezed(padded, [BESIDE], version), weight, *root.inputs[2:3]], pads=pads)


def _check_columns(root: ir.Node, kernel: Sequence[int], padded: int) -> None:
    """Refuse where so many columns of zeros are not known to be written out faster."""
    outputs, _, rows, columns = kernel
    groups = ops.Conv(root).group
    need(groups > 0, "it has no groups", root)
    of_group = outputs // groups
    products = of_group * rows * columns
    width = dims(root.outputs[0], RANK)[3]
    if not isinstance(width, int):
        check_faster(root, PADDED_OF_ANY_WIDTH, kernel=columns, products=products, outputs=of_group)
        return
    need(width > 0, "the result is empty", root)
    shares = {"zeros": 100 * padded // width, "results": 100 * width // padded}
    check_faster(root, PADDED, kernel=columns, products=products, outputs=of_group, **shares)

"""A convolution computes blocks of channels at once: one with few outputs wastes most of each; four pixels fill it.

ONNX Runtime's kernels on the CPU compute 16 output channels (8 without AVX-512) at a time, however few there are. The
last convolution of decoders and superresolution has 1 to 4. Where four neighbouring pixels are channels of one, the
kernel is one row and one column larger and reads every second place only: 16·k² multiplications a pixel become
4·(k + 1)².
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    array_of,
    dims,
    inputs,
    need,
    need_float32,
    opset,
    optional,
    plain_attributes,
    static_dims,
    tensor_of,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import DEPTH_TO_SPACE_HAS_MODES_FROM
from ortopt.transformers.lowering.onnxruntime_cpu._channel_blocks import blocks_that_count

BLOCK = 2
FORM = Form("", "Conv", "with four pixels as channels")

MIN_CHANNELS_OF_BLOCKS = 8
"""Input channels from which their number must be a multiple of 4: the kernels on blocks take no others."""


class Found(Struct, frozen=True):
    """The convolution."""

    nodes: tuple[ir.Node, ...]


class FewOutputConvUnrolling(RewriteRule[Found]):
    """``Conv(x)`` with few outputs → ``DepthToSpace(Conv(x))``, with four pixels as channels and strides of 2.

    It must be less work by what the transposition costs, on processors that compute 8 channels at once and on those
    that compute 16; with --march native on this one, which may have more outputs pay. The larger kernel holds zeros: a
    NaN or an infinity makes NaN of the pixels beside those that read it.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    after = (
        "conv_add_fusion",
        "conv_mul_fusion",
        "resize_projection_reordering",
        "shuffled_conv_fusion",
        "upsampled_conv_decomposition",
    )
    providers = (CPU,)
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "FusedConv"),)
    fuses = ()
    weighs = (FORM,)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Found:
        """A dense kernel, and a result of even height and width."""
        x, weight = inputs(root, 2)
        need_float32(x, "the gain was measured")
        need(optional(root, 3) is None, "it adds another value", root)
        modes = opset(root, "") >= DEPTH_TO_SPACE_HAS_MODES_FROM
        need(modes, "before opset 11 a DepthToSpace has no modes", root)
        channels = static_dims(weight, rank=4)[1]
        taken = channels < MIN_CHANNELS_OF_BLOCKS or channels % 4 == 0
        need(taken, "the kernels on blocks take input channels by four", root)
        _check_plain(root)
        height, width = dims(root.outputs[0], rank=4)[2:]
        even = symbolic.divides(BLOCK, height) and symbolic.divides(BLOCK, width)
        need(even, "height and width of the result are not known to be even", root)
        _check_pays(root, height * width if isinstance(height, int) and isinstance(width, int) else None)
        tensor_of(weight)
        if root.inputs[2:3] and root.inputs[2] is not None:
            tensor_of(root.inputs[2])
        return Found((root,))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution with a kernel that is shifted for each of the four pixels."""
        (root,) = found.nodes
        weight = array_of(root.inputs[1])
        outputs, channels, rows, columns = weight.shape
        own = np.zeros((outputs, BLOCK, BLOCK, channels, rows + 1, columns + 1), np.float32)
        for row in range(BLOCK):
            for column in range(BLOCK):
                own[:, row, column, :, row : row + rows, column : column + columns] = weight
        operands = [root.inputs[0], constant(own.reshape(-1, channels, rows + 1, columns + 1), FLOAT)]
        if root.inputs[2:3] and root.inputs[2] is not None:
            operands.append(constant(np.repeat(array_of(root.inputs[2]), BLOCK * BLOCK), FLOAT))
        conv = ops.copied(root, operands, kernel_shape=None, auto_pad=None, strides=(BLOCK, BLOCK))
        return ir.node("DepthToSpace", conv.outputs, {"blocksize": BLOCK, "mode": "CRD"})


def _check_pays(root: ir.Node, pixels: int | None) -> None:
    """Refuse where the form is not known to be faster, on processors with blocks of 8 channels and with blocks of 16.

    With --march native, this processor's count alone.
    """
    outputs, channels, *kernel = static_dims(inputs(root, 2)[1], rank=4)
    need(outputs > 0, "it has no outputs", root)
    gain = min(_gain(outputs, kernel, block) for block in blocks_that_count(root))
    products = channels * kernel[0] * kernel[1]
    saving = int(100 * gain)
    check_faster(root, FORM, outputs=outputs, kernel=min(kernel), saving=saving, products=products, pixels=pixels)


def _gain(outputs: int, kernel: list[int], block: int) -> float:
    """How much less work four pixels are where so many channels are computed at once."""
    pixels = BLOCK * BLOCK
    rows, columns = kernel
    before = math.ceil(outputs / block) * rows * columns
    after = math.ceil(outputs * pixels / block) * (rows + 1) * (columns + 1) / pixels
    return before / after


def _check_plain(root: ir.Node) -> None:
    """Refuse groups, strides, dilations, and padding that is not written out."""
    plain_attributes(root)
    need(ops.Conv(root).is_plain, "it has groups, strides or dilations", root)
    need(min(ops.Conv(root).pads) >= 0, "its padding crops the image", root)

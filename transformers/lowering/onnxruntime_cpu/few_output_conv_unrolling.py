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
from ortopt.analysis.kernels import CPU
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
MOST_OUTPUTS = 8
LEAST_KERNEL = 3

GAIN = 1.1
"""How much less work it must be, by blocks of channels: below, the transposition costs what is saved."""

MUCH, LEAST_WORK, LEAST_WORK_OF_MUCH = 2.0, 288, 72
"""What each element of the result multiplies, at least; the second number where it is this much less work."""

SMALL_IMAGE = 256
"""Pixels below which it is the number of nodes that counts."""

PLAIN_CHANNELS = 8
"""Input channels from which their number must be a multiple of 4: the kernels on blocks take no others."""


class Found(Struct, frozen=True):
    """The convolution."""

    nodes: tuple[ir.Node, ...]


class FewOutputConvUnrolling(RewriteRule[Found]):
    """``Conv(x)`` with at most 8 outputs → ``DepthToSpace(Conv(x))``, with four pixels as channels and strides of 2.

    1.1 to 2.5 times as fast on processors that compute 16 channels at once; with --march native there also for 5 to 8
    outputs and kernels of 5x5 or more, 1.3 to 1.5 times. The larger kernel holds zeros: a NaN or an infinity makes
    NaN of the pixels beside those that read it.
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
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Found:
        """A dense kernel, and a result of even height and width."""
        x, weight = inputs(root, 2)
        need_float32(x, "the gain was measured")
        need(optional(root, 3) is None, "it adds another value", root)
        modes = opset(root, "") >= DEPTH_TO_SPACE_HAS_MODES_FROM
        need(modes, "before opset 11 a DepthToSpace has no modes", root)
        outputs, channels, *kernel = static_dims(weight, rank=4)
        _check_pays(root, outputs, channels, kernel)
        _check_plain(root)
        height, width = dims(root.outputs[0], rank=4)[2:]
        even = symbolic.divides(BLOCK, height) and symbolic.divides(BLOCK, width)
        need(even, "height and width of the result are not known to be even", root)
        large = not (isinstance(height, int) and isinstance(width, int)) or height * width >= SMALL_IMAGE
        need(large, "the image is small", root)
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


def _check_pays(root: ir.Node, outputs: int, channels: int, kernel: list[int]) -> None:
    """Refuse where the form is not known to be faster, on processors with blocks of 8 channels and with blocks of 16.

    With --march native, this processor's count alone.
    """
    need(0 < outputs <= MOST_OUTPUTS, "it has many outputs", root)
    need(min(kernel) >= LEAST_KERNEL, "the kernel would grow too much", root)
    gain = min(_gain(outputs, kernel, block) for block in blocks_that_count(root))
    need(gain >= GAIN, "four pixels fill more blocks than they save", root)
    least = LEAST_WORK_OF_MUCH if gain >= MUCH else LEAST_WORK
    need(channels * kernel[0] * kernel[1] >= least, "each element reads few numbers", root)
    need(channels < PLAIN_CHANNELS or channels % 4 == 0, "the kernels on blocks take input channels by four", root)


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

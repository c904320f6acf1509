"""ONNX Runtime adds up a transposed convolution element by element; a convolution a phase is summed up in products.

Vocoders and decoders of audio codecs enlarge their signals so (HiFi-GAN, VITS, EnCodec, DAC).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    array_of,
    attribute,
    dims,
    dtype,
    inputs,
    is_never_zero,
    need,
    opset,
    optional,
    plain_attributes,
    static_dims,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

BLOCK = 16
"""The channels that kernels for blocked layouts compute at once, at most."""

FEWEST_CHANNELS = 2 * BLOCK
SHORT = 64
"""Of shorter signals, the phases may cost more than they save."""

AXES_FROM = 13
"""The version of Unsqueeze with axes as an input."""

TO_THE_END = np.iinfo(np.int64).max


class Found(NamedTuple):
    """The transposed convolution.

    Attributes:
        nodes: The node.
        stride: How many phases there are.
        pads: What is cut off the result, at both ends.
        longest: The result's length before that, or None where it is not fixed.
    """

    nodes: tuple[ir.Node, ...]
    stride: int
    pads: tuple[int, int]
    longest: int | None


class ConvTransposeDecomposition(RewriteRule[Found]):
    """``ConvTranspose(x)`` of signals → ``Slice(Reshape(Transpose(Reshape(Conv(x)))))`` with an output a phase.

    This is for kernels of two or more whole strides: 1.05 to 1.45 times as fast, with the numbers of channels that fill
    whole blocks. The convolution is one of images of height 1, for which ONNX Runtime has blocked kernels.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("ConvTranspose",)
    opsets = (10, NEWEST_OPSET)  # before, a Slice had attributes
    after = ("conv_add_fusion", "conv_bn_fusion", "conv_mul_fusion")
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """Constant weights in whole blocks, a kernel of whole strides, and dimensions that Reshape can be told."""
        x, weight = inputs(root, 2)
        need(dtype(x) == FLOAT, "the gain was measured for single precision only", x)
        batch, _, length = dims(x, 3)
        channels, outputs, kernel = static_dims(weight, rank=3)
        array_of(weight)
        stride = _stride(root)
        need(kernel % stride == 0 and kernel > stride > 1, "its kernel is not two or more whole strides", root)
        in_blocks = channels % BLOCK == 0 and outputs * stride % BLOCK == 0
        need(in_blocks and channels >= FEWEST_CHANNELS, "its channels fill no blocks", weight)
        need(outputs >= BLOCK, "it has few outputs", weight)
        pads = attribute(root, "pads", (0, 0))
        need(min(pads) >= 0 and sum(pads) < kernel, "its padding is no frame within the kernel", root)
        need(not isinstance(length, int) or length >= SHORT, "the signals are short", x)
        refused = kernel - stride - sum(pads) <= 0  # ONNX Runtime computes no signals that come out without elements
        need(refused or is_never_zero(length, root), "the signals may be empty", x)
        fixed = isinstance(length, int) or is_never_zero(batch, root)
        need(fixed, "Reshape cannot be told a dimension of 0", x)
        longest = stride * (length - 1) + kernel if isinstance(length, int) else None
        return Found((root,), stride, (pads[0], pads[1]), longest)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the convolution, bring its phases side by side, and cut the ends off."""
        (root,) = found.nodes
        x, weight = inputs(root, 2)
        outputs = array_of(weight).shape[1]
        phases = _convolution(x, root, found.stride)
        apart = ir.node("Reshape", [phases, constant([-1, outputs, found.stride, 0])])
        aside = ir.node("Transpose", apart.outputs, {"perm": [0, 1, 3, 2]})
        whole = [-1, outputs, found.longest] if found.longest is not None else [0, outputs, -1]
        signals = ir.node("Reshape", [aside.outputs[0], constant(whole)]).outputs[0]
        before, after = found.pads
        if not before + after:
            return signals
        end = -after if after else TO_THE_END
        return ir.node("Slice", [signals, *(constant([number]) for number in (before, end, 2))]).outputs[0]


def _stride(root: ir.Node) -> int:
    """The stride of a transposed convolution without groups, dilations and other sizes than its pads give."""
    attributes = plain_attributes(root)
    need(attribute(root, "group", 1) == 1, "it has groups", root)
    need(set(attribute(root, "dilations", (1,))) == {1}, "it has dilations", root)
    need(attribute(root, "auto_pad", "NOTSET") == "NOTSET", "its padding is not written out", root)
    need("output_shape" not in attributes, "its result's size is given", root)
    need(not any(attribute(root, "output_padding", (0,))), "its result is padded", root)
    (stride,) = attribute(root, "strides", (1,))
    return int(stride)


def _convolution(x: ir.Value, root: ir.Node, stride: int) -> ir.Value:
    """The phases as outputs of a convolution of images of height 1: those of an output are neighbours."""
    weight = array_of(root.inputs[1])
    channels, outputs, kernel = weight.shape
    steps = kernel // stride
    own = weight.reshape(channels, outputs, steps, stride).transpose(1, 3, 0, 2)[..., ::-1]
    own = np.ascontiguousarray(own.reshape(outputs * stride, channels, 1, steps))
    operands = [_image(x, root), constant(own, FLOAT)]
    bias = optional(root, 2)
    if bias is not None:
        operands.append(constant(np.repeat(array_of(bias), stride), FLOAT))
    return ir.node("Conv", operands, {"pads": [0, steps - 1, 0, steps - 1]}).outputs[0]


def _image(x: ir.Value, root: ir.Node) -> ir.Value:
    """Signals as images of height 1."""
    if opset(root) < AXES_FROM:
        return ir.node("Unsqueeze", [x], {"axes": [2]}).outputs[0]
    return ir.node("Unsqueeze", [x, constant([2])]).outputs[0]

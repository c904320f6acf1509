"""ONNX Runtime adds up a transposed convolution element by element; a convolution a phase is summed up in products.

Vocoders and decoders of audio codecs enlarge their signals so (HiFi-GAN, VITS, EnCodec, DAC), generators and decoders
of VQ-VAEs their images.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Dim,
    array_of,
    dims,
    inputs,
    is_never_zero,
    need,
    need_float32,
    opset,
    optional,
    static_dims,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.convolution import stride_of_transposed
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM = Form("", "Conv", "of the phases of a transposed convolution")

TO_THE_END = np.iinfo(np.int64).max


class Found(Struct, frozen=True):
    """The transposed convolution.

    Attributes:
        nodes: The node.
        stride: How many phases there are along each axis.
        pads: What is cut off the result: first at the beginning of each axis, then at the end.
        longest: The length of a signal before that, or None where it is not fixed.
    """

    nodes: tuple[ir.Node, ...]
    stride: int
    pads: tuple[int, ...]
    longest: int | None


class ConvTransposeDecomposition(RewriteRule[Found]):
    """``ConvTranspose(x)`` → ``Slice(DepthToSpace(Conv(x)))``, of signals with Reshape and Transpose.

    The convolution has an output for each phase of the result. This is for kernels of two or more whole strides with
    numbers of channels that fill whole blocks. That of signals is one of images of height 1, for which ONNX Runtime has
    blocked kernels. With few outputs and of small images, moving the phases costs more than they save.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("ConvTranspose",)
    opsets = (11, NEWEST_OPSET)  # before, a DepthToSpace had no modes, and a Slice attributes
    after = ("conv_add_fusion", "conv_bn_fusion", "conv_mul_fusion")
    providers = (CPU,)
    weighs = (FORM,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """Constant weights in whole blocks, a kernel of whole strides, and dimensions that Reshape can be told."""
        x, weight = inputs(root, 2)
        need_float32(x, "the gain was measured")
        batch, _, *sides = dims(x)
        need(len(sides) in (1, 2), "it is of no signals and no images", x)
        stride = stride_of_transposed(root)
        kernel = _check_weight(weight, stride, 2 + len(sides))
        pads = ops.Conv(root).pads
        cut = max(sum(pads[axis :: len(sides)]) for axis in range(len(sides)))
        need(min(pads) >= 0 and cut < kernel, "its padding is no frame within the kernel", root)
        longest = _check_sides(root, batch, sides, refused=kernel - stride - cut <= 0)
        channels, outputs, *_ = static_dims(weight)
        length = min((side for side in sides if isinstance(side, int)), default=None)
        check_faster(root, FORM, axes=len(sides), channels=channels, outputs=outputs, length=length, scale=stride)
        return Found((root,), stride, pads, None if longest is None else stride * (longest - 1) + kernel)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the convolution, bring its phases side by side, and cut the ends off."""
        axes = len(found.pads) // 2
        phases = _convolution(found, axes)
        whole = _signals(phases, found) if axes == 1 else _images(phases, found)
        if not any(found.pads):
            return whole
        ends = [-pad if pad else TO_THE_END for pad in found.pads[axes:]]
        bounds = (found.pads[:axes], ends, range(2, 2 + axes))
        return ir.node("Slice", [whole, *(constant(list(numbers)) for numbers in bounds)]).outputs[0]


def _check_weight(weight: ir.Value, stride: int, rank: int) -> int:
    """The size of a kernel of which the phases are whole."""
    channels, outputs, *kernel = static_dims(weight, rank)
    array_of(weight)
    need(len(set(kernel)) == 1, "its kernel is no square", weight)
    size = kernel[0]
    need(size % stride == 0 and size > stride > 1, "its kernel is not two or more whole strides", weight)
    in_blocks = channels % BLOCK == 0 and outputs * stride ** (rank - 2) % BLOCK == 0
    need(in_blocks and min(channels, outputs) > 0, "its channels fill no blocks", weight)
    return size


def _check_sides(root: ir.Node, batch: Dim, sides: list[Dim], *, refused: bool) -> int | None:
    """The length of signals, if it is fixed.

    Args:
        root: The transposed convolution.
        batch: How many signals or images there are.
        sides: Their lengths, or heights and widths.
        refused: Whether ONNX Runtime refuses empty ones, as nothing would come out.
    """
    if len(sides) == 2:
        need(all(isinstance(side, int) for side in sides), "the size of the images is not fixed", root)
    length = sides[0]
    need(refused or is_never_zero(length, root), "the signals may be empty", root)
    fixed = isinstance(length, int) or is_never_zero(batch, root)
    need(fixed, "Reshape cannot be told a dimension of 0", root)
    return length if isinstance(length, int) else None


def _convolution(found: Found, axes: int) -> ir.Value:
    """The phases as outputs of a convolution of images: those of an output are neighbours."""
    (root,) = found.nodes
    x, weight = inputs(root, 2)
    own = array_of(weight)
    if axes == 1:
        own = own[:, :, None]
    down = found.stride if axes == 2 else 1
    channels, outputs, *kernel = own.shape
    steps = kernel[0] // down, kernel[1] // found.stride
    own = own.reshape(channels, outputs, steps[0], down, steps[1], found.stride).transpose(1, 3, 5, 0, 2, 4)
    own = own.reshape(-1, channels, *steps)[:, :, ::-1, ::-1]
    operands = [x if axes == 2 else ops.unsqueezed(x, [2], opset(root)), constant(np.ascontiguousarray(own), FLOAT)]
    bias = optional(root, 2)
    if bias is not None:
        operands.append(constant(np.repeat(array_of(bias), down * found.stride), FLOAT))
    frame = [size - 1 for size in steps]
    return ir.node("Conv", operands, {"pads": [*frame, *frame]}).outputs[0]


def _signals(phases: ir.Value, found: Found) -> ir.Value:
    """The phases of signals, side by side."""
    outputs = array_of(found.nodes[0].inputs[1]).shape[1]
    apart = ir.node("Reshape", [phases, constant([-1, outputs, found.stride, 0])])
    aside = ir.node("Transpose", apart.outputs, {"perm": [0, 1, 3, 2]})
    whole = [-1, outputs, found.longest] if found.longest is not None else [0, outputs, -1]
    return ir.node("Reshape", [aside.outputs[0], constant(whole)]).outputs[0]


def _images(phases: ir.Value, found: Found) -> ir.Value:
    """The phases of images, side by side."""
    return ir.node("DepthToSpace", [phases], {"blocksize": found.stride, "mode": "CRD"}).outputs[0]

"""Transposed convolutions whose phases become channels of a convolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.blocked_layout import BEFORE, BLOCK
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    array_of,
    dims,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    need,
    need_float32,
    opset,
    producer,
    static_dims,
    tensor_of,
)
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.patterns.convolutions import stride_of_transposed
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import bias_of, convolved, points
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule

PHASES = Form("", "Conv", "of the phases of a transposed convolution")

TO_THE_END = np.iinfo(np.int64).max


class ConvTransposeDecomposition(CpuRule[Match]):
    """``ConvTranspose(x)`` → ``Slice(DepthToSpace(Conv(x)))``, of signals with Reshape and Transpose.

    ONNX Runtime adds up a transposed convolution element by element; a convolution a phase is summed up in products.

    Vocoders and decoders of audio codecs enlarge their signals so (HiFi-GAN, VITS, EnCodec, DAC), generators and
    decoders of VQ-VAEs their images.

    The convolution has an output for each phase of the result. This is for kernels of two or more whole strides with
    numbers of channels that fill whole blocks. That of signals is one of images of height 1, for which ONNX Runtime has
    blocked kernels. With few outputs and of small images, moving the phases costs more than they save.
    """

    targets = MEASURED_TARGETS
    roots = ("ConvTranspose",)
    opsets = (11, NEWEST_OPSET)  # before, a DepthToSpace had no modes, and a Slice attributes
    after = ("conv_add_fusion", "conv_bn_fusion", "conv_mul_fusion")
    weighs = (PHASES,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Constant weights in whole blocks, a kernel of whole strides, and dimensions that Reshape can be told."""
        x, weight = inputs(root, 2)
        need_float32(x, MEASURED)
        batch, _, *sides = dims(x)
        need(len(sides) in (1, 2), "it is of no signals and no images", x)
        stride = stride_of_transposed(root)
        kernel = _check_weight(weight, stride, 2 + len(sides))
        bias_of(root)
        pads = ops.Conv(root).pads
        cut = max(sum(pads[axis :: len(sides)]) for axis in range(len(sides)))
        need(min(pads) >= 0 and cut < kernel, "its padding is no frame within the kernel", root)
        longest = _check_sides(root, batch, sides, refused=kernel - stride - cut <= 0)
        channels, outputs, *_ = static_dims(weight)
        length = min((side for side in sides if isinstance(side, int)), default=None)
        check_faster(root, PHASES, axes=len(sides), channels=channels, outputs=outputs, length=length, scale=stride)
        whole = None if longest is None else stride * (longest - 1) + kernel
        return Match((root,), lambda: _of_phases(root, stride, whole))


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


def _of_phases(root: ir.Node, stride: int, longest: int | None) -> ir.Value:
    """Build the convolution, bring its phases side by side, and cut the ends off.

    Args:
        root: The transposed convolution.
        stride: How many phases there are along each axis.
        longest: The length of a signal before it is cut, or None where it is not fixed.
    """
    pads = ops.Conv(root).pads
    axes = len(pads) // 2
    phases, outputs = _phases(root, stride, axes)
    if axes == 2:
        whole = ir.node("DepthToSpace", [phases], {"blocksize": stride, "mode": "CRD"}).outputs[0]
    else:
        apart = ir.node("Reshape", [phases, constant([-1, outputs, stride, 0])])
        aside = ir.node("Transpose", apart.outputs, {"perm": [0, 1, 3, 2]})
        sizes = [0, outputs, -1] if longest is None else [-1, outputs, longest]
        whole = ir.node("Reshape", [aside.outputs[0], constant(sizes)]).outputs[0]
    if not any(pads):
        return whole
    bounds = (pads[:axes], [-pad if pad else TO_THE_END for pad in pads[axes:]], range(2, 2 + axes))
    return ir.node("Slice", [whole, *(constant(list(numbers)) for numbers in bounds)]).outputs[0]


def _phases(root: ir.Node, stride: int, axes: int) -> tuple[ir.Value, int]:
    """The phases as outputs of a convolution of images: those of an output are neighbours; and how many outputs."""
    x, weight = inputs(root, 2)
    own = array_of(weight)
    if axes == 1:
        own = own[:, :, None]
        x = ops.unsqueezed(x, [2], opset(root))
    down = stride if axes == 2 else 1
    channels, outputs, *kernel = own.shape
    steps = kernel[0] // down, kernel[1] // stride
    own = own.reshape(channels, outputs, steps[0], down, steps[1], stride).transpose(1, 3, 5, 0, 2, 4)
    own = own.reshape(-1, channels, *steps)[:, :, ::-1, ::-1]
    bias = bias_of(root)
    repeated = None if bias is None else np.repeat(array_of(bias), down * stride)
    frame = [size - 1 for size in steps]
    return convolved(x, own, repeated, {"pads": [*frame, *frame]}), outputs


STRIDE = 2
PLACES = STRIDE * STRIDE

PHASES_OF_TWO = Form("", "Conv", "of the phases of two transposed convolutions")

ACTIVATIONS = tuple(sorted(BEFORE | {"HardSwish"}))
"""What may be between: in the blocked layout, or faster there. Others were as fast on small images."""


class StackedConvTransposeConversion(CpuRule[Match]):
    """``ConvTranspose(f(ConvTranspose(x)))`` → ``DepthToSpace(Conv(f(Conv(x))))``, kernels and strides of 2.

    Pixels that transposed convolutions enlarge twice, each by itself, stay together as channels until the end.

    Detectors of text (DBNet in docTR, EasyOCR and PaddleOCR) end so, and upsampling decoders of segmentation. A
    transposed convolution whose kernel is its stride computes the four new pixels from one: it is a convolution of
    points with four times the channels. ONNX Runtime multiplies matrices and then adds the four pixels into the large
    image; an activation and the next convolution go over that again. As channels, everything stays small and in the
    blocked layout.

    All pixels' channels are multiplied by the weights of each, most of them zeros, so the last must have few outputs. A
    NaN or an infinity makes NaN of the pixels beside it.
    """

    targets = MEASURED_TARGETS
    roots = ("ConvTranspose",)
    opsets = (11, NEWEST_OPSET)  # before, a DepthToSpace had no modes
    after = ("conv_add_fusion", "conv_bn_fusion", "conv_mul_fusion")
    weighs = (PHASES_OF_TWO,)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Match:
        """Two transposed convolutions that make four pixels of each, and at most an activation between."""
        need_float32(root.outputs[0], MEASURED)
        channels, outputs = _sizes(root)
        first = producer(inputs(root, 1)[0], "ConvTranspose", *ACTIVATIONS)
        between = []
        if not is_op(first, "ConvTranspose"):
            need(all(map(is_constant, filter(None, first.inputs[1:]))), "a bound is not a constant", first)
            between.append(first)
            first = producer(inputs(first, 1)[0], "ConvTranspose")
        here = all(node.graph is root.graph for node in (first, *between))
        need(here, "it is computed in another graph", first)  # a loop's body would compute it again and again
        channels = min(channels, _sizes(first)[0])
        height, width = dims(inputs(first, 1)[0], rank=4)[2:]
        pixels = height * width if isinstance(height, int) and isinstance(width, int) else None
        check_faster(root, PHASES_OF_TWO, channels=channels, outputs=outputs, pixels=pixels)
        return Match((first, *between, root), lambda: _sixteen_pixels(first, between, root))


def _sixteen_pixels(first: ir.Node, between: Sequence[ir.Node], second: ir.Node) -> ir.Node:
    """Build the two convolutions of points, what is between, and move the sixteen pixels to their places."""
    value = _points(first, _apart(array_of(first.inputs[1])), inputs(first, 1)[0], PLACES)
    image = ops.followed(value, between)
    pixels = _points(second, _of_each_place(array_of(second.inputs[1])), image, PLACES**2)
    return ir.node("DepthToSpace", [pixels], {"blocksize": PLACES, "mode": "DCR"})


def _sizes(node: ir.Node) -> tuple[int, int]:
    """Channels and outputs of a transposed convolution that makes four pixels of each, with constant weights."""
    _, weight = inputs(node, 2)
    channels, outputs, *kernel = static_dims(weight, rank=4)
    tensor_of(weight)
    bias_of(node)
    stride = stride_of_transposed(node)
    need(stride == STRIDE and set(kernel) == {STRIDE}, "it does not make two by two pixels of each", node)
    need(not any(ops.Conv(node).pads), "its result is cut", node)
    need(channels % BLOCK == 0 and outputs > 0, "its channels fill no blocks", node)
    return channels, outputs


def _apart(weight: np.ndarray) -> np.ndarray:
    """The matrix of a convolution of points, whose outputs are those of each place, row by row.

    Args:
        weight: [channels, outputs, rows, columns].
    """
    return weight.transpose(0, 2, 3, 1).reshape(len(weight), -1)


def _of_each_place(weight: np.ndarray) -> np.ndarray:
    """The same, of the channels of each of four places by themselves, in the order of rows and columns of both.

    Args:
        weight: [channels, outputs, rows, columns].
    """
    channels, outputs = weight.shape[:2]
    size = (STRIDE,) * 2
    own = np.zeros((STRIDE, STRIDE, STRIDE, STRIDE, outputs, *size, channels), weight.dtype)
    for row, column in np.ndindex(size):
        own[row, :, column, :, :, row, column] = weight.transpose(2, 3, 1, 0)
    return own.reshape(-1, PLACES * channels).T


def _points(old: ir.Node, matrix: np.ndarray, x: ir.Value, places: int) -> ir.Value:
    """A convolution of points with the bias of a transposed one at each place."""
    bias = bias_of(old)
    return points(x, matrix, None if bias is None else np.tile(array_of(bias), places))

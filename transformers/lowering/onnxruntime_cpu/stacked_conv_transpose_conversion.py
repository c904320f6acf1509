"""Pixels that transposed convolutions enlarge twice, each by itself, stay together as channels until the end.

Detectors of text (DBNet in docTR, EasyOCR and PaddleOCR) end so, and upsampling decoders of segmentation. A transposed
convolution whose kernel is its stride computes the four new pixels from one: it is a convolution of points with four
times the channels. ONNX Runtime multiplies matrices and then adds the four pixels into the large image; an activation
and the next convolution go over that again. As channels, everything stays small and in the blocked layout.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BEFORE, BLOCK
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    need_float32,
    optional,
    producer,
    static_dims,
    tensor_of,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.convolution import stride_of_transposed
from ortopt.rule import NEWEST_OPSET, RewriteRule

STRIDE = 2
PLACES = STRIDE * STRIDE

FORM = Form("", "Conv", "of the phases of two transposed convolutions")

ACTIVATIONS = tuple(sorted(BEFORE | {"HardSwish"}))
"""What may be between: in the blocked layout, or faster there. Others were as fast on small images."""


class Found(Struct, frozen=True):
    """The first transposed convolution, perhaps an activation, and the second.

    Attributes:
        nodes: All of them, in this order.
    """

    nodes: tuple[ir.Node, ...]


class StackedConvTransposeConversion(RewriteRule[Found]):
    """``ConvTranspose(f(ConvTranspose(x)))`` → ``DepthToSpace(Conv(f(Conv(x))))``, kernels and strides of 2.

    All pixels' channels are multiplied by the weights of each, most of them zeros, so the last must have few outputs. A
    NaN or an infinity makes NaN of the pixels beside it.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("ConvTranspose",)
    opsets = (11, NEWEST_OPSET)  # before, a DepthToSpace had no modes
    after = ("conv_add_fusion", "conv_bn_fusion", "conv_mul_fusion")
    providers = (CPU,)
    weighs = (FORM,)
    targets = (Target.ORT,)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Found:
        """Two transposed convolutions that make four pixels of each, and at most an activation between."""
        need_float32(root.outputs[0], "the gain was measured")
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
        check_faster(root, FORM, channels=channels, outputs=outputs, pixels=pixels)
        return Found((first, *between, root))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the two convolutions of points, what is between, and move the sixteen pixels to their places."""
        first, *between, second = found.nodes
        value = _points(first, _apart(array_of(first.inputs[1])), inputs(first, 1)[0], PLACES)
        for node in between:
            operands = [value, *node.inputs[1:]]
            value = ops.copied(node, operands).outputs[0]
        pixels = _points(second, _of_each_place(array_of(second.inputs[1])), value, PLACES**2)
        return ir.node("DepthToSpace", [pixels], {"blocksize": PLACES, "mode": "DCR"})


def _sizes(node: ir.Node) -> tuple[int, int]:
    """Channels and outputs of a transposed convolution that makes four pixels of each, with constant weights."""
    _, weight = inputs(node, 2)
    channels, outputs, *kernel = static_dims(weight, rank=4)
    tensor_of(weight)
    bias = optional(node, 2)
    if bias is not None:
        tensor_of(bias)
    stride = stride_of_transposed(node)
    need(stride == STRIDE and set(kernel) == {STRIDE}, "it does not make two by two pixels of each", node)
    need(not any(ops.Conv(node).pads), "its result is cut", node)
    need(channels % BLOCK == 0 and outputs > 0, "its channels fill no blocks", node)
    return channels, outputs


def _apart(weight: np.ndarray) -> np.ndarray:
    """The weights of a convolution of points, whose outputs are those of each place, row by row.

    Args:
        weight: [channels, outputs, rows, columns].
    """
    return weight.transpose(2, 3, 1, 0).reshape(-1, weight.shape[0], 1, 1)


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
    return own.reshape(-1, PLACES * channels, 1, 1)


def _points(old: ir.Node, weight: np.ndarray, x: ir.Value, places: int) -> ir.Value:
    """A convolution of points with the bias of a transposed one at each place."""
    operands = [x, constant(np.ascontiguousarray(weight), FLOAT)]
    bias = optional(old, 2)
    if bias is not None:
        operands.append(constant(np.tile(array_of(bias), places), FLOAT))
    return ir.node("Conv", operands).outputs[0]

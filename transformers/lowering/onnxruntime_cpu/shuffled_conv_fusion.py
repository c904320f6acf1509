"""Two convolutions with a pixel shuffle between are one on the small image: linear functions of it, one after another.

Superresolution (EDSR, RCAN, SwinIR, HAT) computes hundreds of channels, makes pixels of them and has three channels
left behind the next convolution. One convolution gives what is left, before the shuffle, for a fraction of the work:
its kernel is as large as both together. At the image's edges it would differ. The second convolution reads zeros there,
and one on the small image would read what the first gives beyond the edge. So a strip along each edge is computed
as before.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.magnitudes import need_digits, need_near, need_no_larger
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Dim,
    array_of,
    attribute,
    dims,
    inputs,
    is_op,
    need,
    need_float32,
    need_present,
    only_user,
    optional,
    plain_attributes,
    producer,
    static_dims,
)
from ortopt.linear.channels import vector
from ortopt.linear.weights import rounded
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.patterns.convolutions import is_convolution
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule

AXES = (2, 3)
BLOCK = 16
"""Channels that a kernel computes at once at most: fewer cost as many."""

FORM = Form("", "Conv", "of two around a shuffle")
TYPICAL_SIZE = 128
"""Height and width of an image of any size, for estimates."""

MAX_FOLDING = 1 << 28
"""Multiplications that the new weights may take: a part of a second."""

END = 2**63 - 1


class Along(NamedTuple):
    """What happens along one axis of the image.

    Attributes:
        first: The size of the first kernel.
        second: The size of the second kernel.
        block: Pixels that the shuffle makes of one.
    """

    first: int
    second: int
    block: int

    @property
    def edge(self) -> int:
        """Pixels at each edge of the large image for which the second kernel reads beyond it."""
        return self.second // 2

    @property
    def reach(self) -> tuple[int, int]:
        """How many places before and behind its own a pixel of the small image is read by the second kernel."""
        return -(-self.edge // self.block), (self.block - 1 + self.edge) // self.block

    @property
    def pads(self) -> tuple[int, int]:
        """The padding of the one convolution, before and behind."""
        before, behind = self.reach
        return self.first // 2 + before, self.first // 2 + behind

    @property
    def kernel(self) -> int:
        """The size of the one kernel."""
        return self.first + sum(self.reach)

    @property
    def strip(self) -> int:
        """Pixels of the small image from which those at one edge of the large one are computed."""
        return 1 + self.first // 2


class ShuffledConvFusion(CpuRule[Match]):
    """``Conv(DepthToSpace(Conv(x)))`` → ``DepthToSpace(Conv(x))``, and the edges as before, where that is less work.

    The larger kernel holds zeros: a NaN or an infinity makes NaN of the pixels beside those that read it.
    """

    targets = MEASURED_TARGETS
    roots = ("DepthToSpace",)
    after = ("conv_add_fusion", "conv_mul_fusion")
    opsets = (11, NEWEST_OPSET)  # the modes of DepthToSpace; before 10, Slice has its bounds as attributes
    weighs = (FORM,)
    produces = ((MICROSOFT, "FusedConv"),)
    fuses = ()
    numerics = Numerics.FINITE
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Convolutions that keep the size of the image, with constant weights, the first without an activation."""
        (image,) = inputs(root, 1)
        first = producer(image, "Conv")
        second = only_user(root.outputs[0])
        need_present(is_convolution(second), "no convolution comes after", second)
        need(second.inputs[0] is root.outputs[0], "the image is a weight", second)
        need(optional(second, 3) is None, "it adds another value", second)
        weights = [_weight(first), _weight(second)]
        need(all(weight.size for weight in weights), "the weights are empty", root)
        block = attribute(root, "blocksize", 0)
        height, width = (Along(weights[0].shape[axis], weights[1].shape[axis], block) for axis in AXES)
        along = (height, width)
        for place, node in enumerate((first, second)):
            _check_plain(node, tuple(axis[place] for axis in along))
        need(all(axis.edge <= block // 2 for axis in along), "the second kernel reads further than a block", second)
        _check_pays(first, weights, along)
        channels = weights[0].shape[0] // block**2
        need(weights[1].shape[1] * block**2 == weights[0].shape[0], "the second convolution reads groups", second)
        channels_first = attribute(root, "mode", "DCR") == "CRD"
        order = (channels, block, block) if channels_first else (block, block, channels)
        to_channels = (0, 1, 2) if channels_first else (2, 0, 1)
        before = weights[0].reshape(*order, *weights[0].shape[1:]).transpose(*to_channels, 3, 4, 5)
        offset = _bias(first).reshape(order).transpose(to_channels)
        weight, bias = _folded((first, second), before, offset, weights[1], along)
        nodes, y = (first, root, second), second.outputs[0]
        return Match(nodes, lambda: {y: _whole_image(nodes, along, weight, bias)}, (y,))


def _whole_image(
    nodes: tuple[ir.Node, ir.Node, ir.Node], along: tuple[Along, Along], weight: np.ndarray, bias: np.ndarray
) -> ir.Value:
    """Build the one convolution with its shuffle, the strips, and the image of all.

    Args:
        nodes: The first convolution, the shuffle, and the second convolution.
        along: What happens along height and width.
        weight: The weight of the one convolution.
        bias: Its bias.
    """
    first, shuffle, second = nodes
    x = inputs(first, 2)[0]
    pads = [size for side in zip(*(axis.pads for axis in along), strict=True) for size in side]
    operands = [x, constant(weight, FLOAT), constant(bias, FLOAT)]
    conv = ops.copied(second, operands, kernel_shape=None, auto_pad=None, pads=pads)
    block = attribute(shuffle, "blocksize", 0)
    image = ir.node("DepthToSpace", conv.outputs, {"blocksize": block, "mode": "CRD"}).outputs[0]
    for axis, one in reversed([*zip(AXES, along, strict=True)]):
        if one.edge:
            head = _cut(ops.followed(_cut(x, axis, 0, one.strip), nodes), axis, 0, one.edge)
            tail = _cut(ops.followed(_cut(x, axis, -one.strip, END), nodes), axis, -one.edge, END)
            inner = _cut(image, axis, one.edge, -one.edge)
            image = ir.node("Concat", [head, inner, tail], {"axis": axis}).outputs[0]
    return image


def _cut(x: ir.Value, axis: int, start: int, end: int) -> ir.Value:
    return ir.node("Slice", [x, *(constant([number]) for number in (start, end, axis))]).outputs[0]


def _weight(node: ir.Node) -> np.ndarray:
    """The constant weight of a convolution of images."""
    weight = inputs(node, 2)[1]
    need_float32(weight, MEASURED)
    static_dims(weight, rank=4)
    return array_of(weight).astype(np.float64)


def _bias(node: ir.Node) -> np.ndarray:
    """The constant bias of a convolution, zeros for none."""
    own, outputs = optional(node, 2), static_dims(inputs(node, 2)[1], rank=4)[0]
    return np.zeros(outputs) if own is None else vector(own, outputs)


def _check_plain(node: ir.Node, kernel: tuple[int, ...]) -> None:
    """Refuse groups, strides, dilations, and a result of another size than the image."""
    plain_attributes(node)
    need(ops.Conv(node).is_plain, "it has groups, strides or dilations", node)
    half = tuple(size // 2 for size in kernel)
    keeps = all(size % 2 for size in kernel) and ops.Conv(node).pads == (*half, *half)
    need(keeps, "its result is not of the image's size", node)


def _check_pays(first: ir.Node, weights: list[np.ndarray], along: tuple[Along, ...]) -> None:
    """Refuse where the one convolution and the strips are not much less work, by multiplications for each pixel."""
    x = inputs(first, 2)[0]
    sizes = dims(x, 4)[2:]
    known = all(isinstance(size, int) for size in sizes)
    need(known or not is_op(x.producer(), "Slice"), "a part of an image may be small", x)
    height, width = (_typical(size) for size in sizes)
    channels, (outputs, _, rows, columns) = weights[0].shape[1], weights[1].shape
    pixels = along[0].block * along[1].block
    kernel = along[0].kernel * along[1].kernel
    before = (
        math.prod(weights[0].shape[1:]) * _whole(weights[0].shape[0]) + weights[0].shape[0] * rows * columns * outputs
    )
    strips = sum(2 * axis.strip / max(size, 1) for axis, size in zip(along, (height, width), strict=True) if axis.edge)
    after = channels * kernel * _whole(outputs * pixels) + strips * before
    need(after < before, "one convolution is no less work", first)  # else the strips would be taken apart again
    saved = int(height * width * (before - after))
    check_faster(first, FORM, left=math.ceil(100 * after / before), saved=saved)


def _typical(size: Dim) -> int:
    return size if isinstance(size, int) else TYPICAL_SIZE


def _whole(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK


def _folded(
    nodes: tuple[ir.Node, ir.Node],
    before: np.ndarray,
    offset: np.ndarray,
    behind: np.ndarray,
    along: tuple[Along, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of the one convolution.

    Args:
        nodes: Both convolutions.
        before: The first weight: channel, row and column in a block, input channel, kernel.
        offset: The first bias: channel, row and column in a block.
        behind: The second weight: output, channel, kernel.
        along: What happens along height and width.
    """
    first, second = nodes
    outputs, block = behind.shape[0], along[0].block
    need(before.size * outputs * along[0].second * along[1].second <= MAX_FOLDING, "the weights are large", first)
    weight = np.zeros((outputs, block, block, before.shape[3], along[0].kernel, along[1].kernel))
    bias = np.zeros((outputs, block, block)) + _bias(second)[:, None, None]
    for row, column in np.ndindex(block, block):
        for up, left in np.ndindex(*behind.shape[2:]):
            (down, own_row), (right, own_column) = (
                divmod(row + up - along[0].edge, block),
                divmod(column + left - along[1].edge, block),
            )
            top, side = down + along[0].reach[0], right + along[1].reach[0]
            part = np.tensordot(behind[:, :, up, left], before[:, own_row, own_column], 1)
            place = (slice(top, top + along[0].first), slice(side, side + along[1].first))
            weight[:, row, column, :, place[0], place[1]] += part
            bias[:, row, column] += behind[:, :, up, left] @ offset[:, own_row, own_column]
    _check_magnitudes(nodes, before, offset, behind, weight)
    kernel = rounded(weight.reshape(-1, *weight.shape[3:]), FLOAT, first)
    return kernel, rounded(bias.reshape(-1), FLOAT, first)


def _check_magnitudes(
    nodes: tuple[ir.Node, ir.Node], before: np.ndarray, offset: np.ndarray, behind: np.ndarray, weight: np.ndarray
) -> None:
    """Refuse where the large image may overflow, or vanish, long before what it is computed from and what it gives."""
    first, _ = nodes
    gain = np.abs(before).sum(axis=(3, 4, 5))
    need_near(gain, (1.0, np.abs(weight).sum(axis=(3, 4, 5)).max(initial=0.0)), FLOAT, first)
    reading = np.abs(behind).sum(axis=(0, 2, 3))[:, None, None]
    need_no_larger(np.abs(offset), (1.0, reading), FLOAT, first)
    need_digits(weight, before, FLOAT, first)

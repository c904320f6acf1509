"""Ops that end ONNX Runtime's blocked layout, as others that go on in it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.blocked_layout import ALIGNED, BLOCK, is_blocked_convolution
from ortopt.analysis.blocked_values import PARTS, THROUGH, fills_most, is_in_blocks
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import DECLARED
from ortopt.graph.match import (
    FLOAT,
    dims,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    is_used_once,
    need,
    need_fixed,
    need_float32,
    operand_constant,
    operand_from,
    opset,
    producer,
    same_dim,
    users,
)
from ortopt.graph.symbolic import Dim
from ortopt.linear.channels import of_channels
from ortopt.options import Numerics
from ortopt.patterns.convolutions import elements_of_an_image, is_convolution
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.op_traits import REDUCTIONS
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import CONVOLUTIONS, convolved
from ortopt.transformers.lowering.onnxruntime_cpu._rules import FOR_BLOCKS, CpuRule

RANK = 4
GATE = Form("", "Resize", "of a gate of channels")
SUMMAND = Form("", "Conv", "of a summand of blocks")
PART = Form("", "Conv", "before an activation in blocks")


class ChannelGateConversion(CpuRule[Match]):
    """``Mul(x, gate)`` → ``Mul(x, Resize(gate))`` between convolutions, for a gate with one number a channel.

    ONNX Runtime's blocked layout ends where an image is multiplied by one number a channel; of two images it goes on.

    Mobile networks gate their channels so (squeeze and excitation): EfficientNet, MobileNetV3 and many for text in
    images.

    The same bits, but for the sign of a zero where the gate itself comes into blocks by a convolution with ones.
    """

    roots = ("Mul",)
    needs = CONVOLUTIONS
    opsets = (11, NEWEST_OPSET)
    weighs = (GATE,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """An image of fixed size in blocks, a gate, and a result that goes on in blocks."""
        image, gate = inputs(root, 2)
        if dims(image, RANK)[2:] == (1, 1):
            image, gate = gate, image
        batch, channels, *sides = dims(image, RANK)
        need_float32(image, FOR_BLOCKS)
        need(dims(gate, RANK)[2:] == (1, 1), "neither operand is one number a channel", gate)
        both = zip(dims(gate)[:2], (batch, channels), strict=True)
        need(all(same_dim(*pair) for pair in both), "the gate is not one number for each channel", gate)
        filled = _filled(image)
        size = need_fixed(sides, "a dimension is not fixed", image)
        need(math.prod(size) > 1, "the image is a point", image)
        leaves = any(is_op(user, *REDUCTIONS) for user in users(image))  # of images, pools alone read blocks
        need(not leaves, "a reduction takes the image out of the blocks", image)
        need(is_in_blocks(image), "the image is not in the blocked layout", image)
        _check_goes_on(root)
        check_faster(root, GATE)
        is_inside = is_in_blocks(gate)

        def build() -> ir.Node:
            inside = gate if is_inside else _times_one(gate, filled)
            return _of_two_images(image, inside, size, opset(root))

        return Match((root,), build)


def _of_two_images(image: ir.Value, gate: ir.Value, size: Sequence[int], version: int) -> ir.Node:
    """Build the image of the gate, and the product."""
    scales = constant(np.array([1, 1, *size], np.float32))
    copy = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    # Up to opset 12 the region of interest, which nothing here reads, is no optional input.
    region = None if version >= 13 else constant(np.array([], np.float32))
    gates = ir.node("Resize", [gate, region, scales], copy)
    product = ir.node("Mul", [image, gates.outputs[0]])
    # ONNX Runtime infers no symbolic dimension of what is resized, and sums of two images that it cannot prove
    # equally large leave the blocked layout: the file has to say that the batch is the image's.
    for node in (gates, product):
        node.outputs[0].meta[DECLARED] = True
    return product


LARGEST_SCALE = 8.0
"""Both products are larger than the difference by this at most, and so is their rounding."""


class UnitConvolutionConversion(CpuRule[Match]):
    """``Add(x, y)`` → ``Add(x, Conv(y))``, ``Clip(x)`` → ``Clip(Conv(x))`` with weights of 1, for x in blocks.

    ONNX Runtime's blocked layout ends at a sum with an image that is not in it, and with that at every sum behind: in a
    network of residual blocks one Pad of channels, or one pooling of channels that fill no blocks, ends it for all that
    follow. And it ends at a Clip or a LeakyRelu that is part of no convolution, as behind a sum.

    BlazeFace, BlazePose, and what MediaPipe has for faces, eyes and hands have these. The convolution, one product for
    each element, costs less than one of the two reorderings that it saves.
    """

    roots = ("Add", *sorted(PARTS))
    needs = CONVOLUTIONS
    opsets = (7, NEWEST_OPSET)  # before, an Add broadcasts by an attribute
    looks_downstream = True
    weighs = (SUMMAND, PART)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """An image in blocks, and a result that goes on in blocks."""
        _check_goes_on(root)
        return _summed(root) if is_op(root, "Add") else _part(root)


def _summed(root: ir.Node) -> Match:
    """Two images of one shape, of known channels and size, of which one is not in blocks, before another sum."""
    x, y = inputs(root, 2)
    if not is_in_blocks(x):
        x, y = y, x
    need(is_in_blocks(x), "neither image is in the blocked layout", root)
    need(not is_constant(y) and not is_in_blocks(y), "there is no image outside of the blocked layout", root)
    need(is_used_once(x), "the image is used elsewhere", x)
    need(symbolic.same_shape(dims(x, RANK), dims(y, RANK)), "the images are not of the same size", root)
    # ONNX Runtime adds images that it cannot prove equally large in another way.
    need_fixed(dims(x)[1:], "a dimension is not fixed", x)
    channels = _filled(x)
    # Where one convolution reads the sum, and no other sum, it is as fast as it was.
    need(_is_added(root.outputs[0]), "nothing is added to the result", root)
    check_faster(root, SUMMAND, image=elements_of_an_image(x, root))
    return Match((root,), lambda: ir.node("Add", [x, _times_one(y, channels)]))


def _part(root: ir.Node) -> Match:
    """An activation that is not part of a convolution yet."""
    (x,) = inputs(root, 1)
    need(is_in_blocks(x), "the image is not in the blocked layout", x)
    need(not is_op(x.producer(), *CONVOLUTIONS), "a convolution takes it in", root)
    channels = _filled(x)
    check_faster(root, PART, image=elements_of_an_image(x, root))
    return Match((root,), lambda: ops.copied(root, [_times_one(x, channels), *root.inputs[1:]]))


def _filled(x: ir.Value) -> int:
    """The channels of an image, where they fill blocks, most of the last one, too."""
    need_float32(x, FOR_BLOCKS)
    (channels,) = need_fixed(dims(x, RANK)[1:2], "the number of channels is not fixed", x)
    need(channels % ALIGNED == 0, "the channels are not reordered", x)
    need(fills_most(channels), "much of the blocks would be empty", x)
    return channels


def _times_one(image: ir.Value, channels: int) -> ir.Value:
    return convolved(image, np.ones((channels, 1, 1, 1)), None, {"group": channels})


def _is_added(image: ir.Value) -> bool:
    """Whether a sum reads an image, or what an activation or a pooling makes of it."""
    readers = users(image)
    behind = (reader.outputs[0] for reader in readers if is_op(reader, "PRelu", *THROUGH))
    return any(is_op(reader, "Add") for reader in itertools.chain(readers, *map(users, behind)))


def _check_goes_on(root: ir.Node) -> None:
    """Refuse a result that something may read outside of blocks."""
    result = root.outputs[0]
    readers = () if result.is_graph_output() else users(result)
    stays = all(is_op(reader, "Add", "PRelu", *THROUGH) or is_blocked_convolution(reader) for reader in readers)
    need(bool(readers) and stays, "the result does not go on in blocks", root)


class ScaledDifferenceConversion(CpuRule[Match]):
    """``x + c · (p - x)`` → ``(1 - c) · x + c · p`` for images in ONNX Runtime's blocked layout.

    ONNX Runtime's blocked layout ends where one image is subtracted from another; two scaled images are added in
    blocks.

    Networks that mix by pooling (EfficientFormer, MetaFormer) add, to what they pool, the scaled difference of both.

    A convolution takes the sum and the factors, one for each channel; a difference would leave the layout.
    """

    after = ("channel_affine_conversion", "transpose_optimizer")
    roots = ("Add",)
    needs = CONVOLUTIONS
    opsets = (7, NEWEST_OPSET)  # before, they broadcast by an attribute
    numerics = Numerics.FINITE  # two infinities, whose difference is no number, may have a sum
    lookback = 8

    def match(self, root: ir.Node) -> Match:
        """Two images of the same size in blocks, and a constant for each channel."""
        product, x = operand_from(root, "Mul")
        factor, between = operand_constant(product)
        difference = producer(between, "Sub")
        other, image = inputs(difference, 2)
        need(image is x, "it adds something else than what is subtracted", root)
        need_float32(x, FOR_BLOCKS)
        size = dims(x, RANK)
        need(symbolic.same_shape(size, dims(other, RANK)), "the images are not of the same size", difference)
        (channels,) = need_fixed(size[1:2], "the number of channels is not fixed", x)
        scale = of_channels(factor, channels, RANK)
        need(bool((np.abs(scale) <= LARGEST_SCALE).all()), "a factor is large, or no number", factor)
        blocked = is_in_blocks(x) and is_in_blocks(other)
        need(blocked, "the images are not in the blocked layout", root)
        return Match((difference, product, root), lambda: _sum(((x, 1 - scale), (other, scale))))


def _sum(images: Sequence[tuple[ir.Value, np.ndarray]]) -> ir.Node:
    """Build the sum of images with a factor for each channel."""
    return ir.node("Add", [ir.node("Mul", [image, _factors(numbers)]).outputs[0] for image, numbers in images])


def _factors(numbers: np.ndarray) -> ir.Value:
    return constant(numbers.astype(np.float32).reshape(-1, 1, 1), FLOAT)


MAX_STEPS = 4
SAME_SIZE = (
    "Relu",
    "Clip",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "Add",
    "Mul",
    "BatchNormalization",
)
"""Ops that give something of an image's size, if nothing else that they take is computed."""


class SpatialMeanConversion(CpuRule[Match]):
    """``ReduceMean<axes = [2, 3]>(x)`` → ``GlobalAveragePool(x)`` for an x that convolutions give, in whole blocks.

    A mean over height, width or both ends ONNX Runtime's blocked layout as a ReduceMean; as a pooling it goes on.

    A mean over one axis of fixed size becomes an ``AveragePool``: readers of text take the mean over the height.
    """

    roots = ("ReduceMean",)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """The last two of four axes, which stay as ones, or one of them."""
        x = inputs(root, len(root.inputs))[0]
        batch, channels, height, width = dims(x, RANK)
        need_float32(x, FOR_BLOCKS)
        mean = ops.Reduce(root)
        over, keeps = set(mean.axes), mean.keeps_axes
        need(bool(over) and over <= {2, 3}, "it is no mean over height and width", root)
        need(keeps or len(over) == 1, "it drops the axes", root)
        kernel = None if len(over) == 2 else _kernel(over, height, width)
        full = is_never_zero(height, root) and is_never_zero(width, root)
        need(full or _is_never_empty(x), "the image may be empty", x)
        # The kernel of the mean gives a result of the image's size for a batch of 0 if axes are counted from the end.
        need(min(mean.stated_axes) >= 0 or is_never_zero(batch, root), "the batch may be empty", x)
        need(isinstance(channels, int) and channels % BLOCK == 0, "the channels fill no blocks", x)
        need(is_in_blocks(x), "the image is not in the blocked layout", x)
        return Match((root,), lambda: _pooled(root, x, kernel, None if keeps else [*over]))


def _pooled(root: ir.Node, x: ir.Value, kernel: tuple[int, int] | None, dropped: list[int] | None) -> ir.Node:
    """Build the pooling of the whole image, or of a window, and take the axis away that the result lacks."""
    if kernel is None:
        return ir.node("GlobalAveragePool", [x])
    pooled = ir.node("AveragePool", [x], {"kernel_shape": kernel})
    return pooled if dropped is None else ops.node_along("Squeeze", pooled.outputs[0], dropped, opset(root))


def _kernel(over: set[int], height: Dim, width: Dim) -> tuple[int, int]:
    """The window of a mean over one axis."""
    (size,) = need_fixed([height if over == {2} else width], "the size of the axis is not fixed", None)
    need(size > 1, "the axis has one element")
    return (size, 1) if over == {2} else (1, size)


def _is_never_empty(value: ir.Value) -> bool:
    """Whether a value has the size of a convolution's result that is at least as large as its input minus its steps.

    ONNX Runtime runs no convolution of an empty image.
    """
    for _ in range(MAX_STEPS):
        node = value.producer()
        if node is None or is_convolution(node):
            return node is not None and _is_padded_enough(node)
        images = [one for one in node.inputs if one is not None and not is_constant(one)]
        if len(images) != 1 or not is_op(node, *SAME_SIZE):
            return False
        (value,) = images
    return False


def _is_padded_enough(node: ir.Node) -> bool:
    """Whether a convolution gives an element for each place where its kernel can lie with its first one inside."""
    conv = ops.Conv(node)
    if conv.auto_pad.startswith("SAME"):
        return True
    kernel = dims(node.inputs[1])[2:] if node.inputs[1] is not None else ()
    pads, axes = conv.stated_pads, len(kernel)
    return bool(kernel) and all(
        isinstance(size, int) and pads[axis] + pads[axis + axes] >= (size - 1) * conv.dilations[axis]
        for axis, size in enumerate(kernel)
    )

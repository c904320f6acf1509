"""Blocks of pixels that become channels, or come of them, beside a convolution or alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.magnitudes import need_no_larger
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Dim,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_used_once,
    need,
    need_fixed,
    need_float32,
    opset,
    optional,
    plain_attributes,
    producer,
    same_dim,
    small_array,
    static_dims,
)
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.rule import Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import DEPTH_TO_SPACE_HAS_MODES_FROM
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import CONVOLUTIONS, ConvRule, convolution
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule

TWO_TRANSPOSES = Form("", "Transpose", "twice in place of DepthToSpace")


class DepthToSpaceDecomposition(CpuRule[Match]):
    """``DepthToSpace(x)`` → two ``Transpose`` of four axes between ``Reshape``, for small blocks.

    ONNX Runtime's DepthToSpace moves single elements; two transpositions of matrices do the same faster.

    On its CPU the kernel is a transposition of six axes, which for small blocks is slower than two of four axes.
    """

    targets = MEASURED_TARGETS
    roots = ("DepthToSpace",)
    after = ("shuffled_conv_fusion",)
    weighs = (TWO_TRANSPOSES,)

    def match(self, root: ir.Node) -> Match:
        """A small block, and fixed dimensions besides the batch."""
        (x,) = inputs(root, 1)
        block = attribute(root, "blocksize", 0)
        need(block > 1, "it moves nothing", root)
        check_faster(root, TWO_TRANSPOSES, scale=block)
        need_float32(x, "the kernel was measured")
        depth, height, width = need_fixed(dims(x, 4)[1:], "a dimension is not fixed", x)
        need(height > 0 and width > 0, "the image has no elements: Reshape would copy another dimension for 0", x)
        mode = attribute(root, "mode", "DCR") if opset(root) >= DEPTH_TO_SPACE_HAS_MODES_FROM else "DCR"
        need(depth > 0 and depth % block**2 == 0, "the channels are no whole blocks", x)
        return Match((root,), lambda: _twice(x, mode, block))


def _twice(x: ir.Value, mode: str, block: int) -> ir.Value:
    """Bring the columns of a block behind the columns of the image, then its rows behind the image's rows."""
    batch, *image = dims(x)
    depth, height, width = (dim for dim in image if isinstance(dim, int))
    channels = depth // block**2
    if mode == "CRD":  # [batch, channels, rows, columns of a block, height, width]
        first, second = (channels * block, block, height, width), (channels, block, height)
    else:  # [batch, rows, columns of a block, channels, height, width]
        first, second = (block, block, channels * height, width), (1, block, channels * height)
    blocks = ir.node("Reshape", [x, _times(batch, first)])
    columns = ir.node("Transpose", blocks.outputs, {"perm": (0, 2, 3, 1)})
    rows = ir.node("Reshape", [columns.outputs[0], _times(batch, (*second, width * block))])
    turned = ir.node("Transpose", rows.outputs, {"perm": (0, 2, 1, 3)})
    whole = (1, channels, height * block, width * block)
    return ir.node("Reshape", [turned.outputs[0], _times(batch, whole)]).outputs[0]


def _times(batch: Dim, shape: tuple[int, ...]) -> ir.Value:
    """The shape for Reshape of a batch of what has this shape; where that is not fixed, Reshape finds it."""
    return constant((batch * shape[0] if isinstance(batch, int) else -1, *shape[1:]))


BLOCK = 2
"""Rows and columns of a block: with 4 it is as fast as before, or slower."""

UNSHUFFLED = Form("", "Conv", "of the image before SpaceToDepth")

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


class SpaceToDepthConvFusion(ConvRule[Match]):
    """``Conv(SpaceToDepth(x))`` → ``Conv(x)`` with a kernel twice as large and twice the strides.

    A convolution of an image whose pixels were moved into channels by fours reads the image itself, at twice the
    stride.

    The "focus" layer of YOLO v5 and YOLOX is one, and so is the "pixel unshuffle" of networks for superresolution.

    The products are the same, and nothing is moved. That pays for images of few channels.
    """

    targets = MEASURED_TARGETS
    after = ("space_to_depth_fusion",)
    lookback = 3
    weighs = (UNSHUFFLED,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A dense kernel that alone reads the blocks of an image with few channels."""
        moved, weight = inputs(root, 2)
        need_float32(moved, MEASURED)
        plain_attributes(root)
        need(is_used_once(moved), "the blocks are used elsewhere", moved)
        blocks = _blocks(moved)
        need(blocks.channels > 0, "the image has no channels", blocks.image)
        check_faster(root, UNSHUFFLED, channels=blocks.channels)
        conv = ops.Conv(root)
        need(conv.group == 1, "it has groups", root)
        need(set(conv.dilations) == {1}, "it has dilations", root)
        need(conv.auto_pad == "NOTSET", "its padding is not written out", root)
        need(is_constant(weight), "its weights are no constant", weight)
        read = static_dims(weight, rank=4)[1]
        need(read == blocks.channels * BLOCK * BLOCK, "it reads other channels", weight)
        return Match((root, *blocks.nodes), lambda: _of_the_image(root, blocks))


def _of_the_image(root: ir.Node, blocks: Blocks) -> ir.Node:
    """Build the convolution, with the weights of each place of a block side by side."""
    weight = array_of(root.inputs[1])
    outputs, _, rows, columns = weight.shape
    if blocks.channel_first:
        places = weight.reshape(outputs, blocks.channels, BLOCK, BLOCK, rows, columns).transpose(0, 1, 4, 2, 5, 3)
    else:
        places = weight.reshape(outputs, BLOCK, BLOCK, blocks.channels, rows, columns).transpose(0, 3, 4, 1, 5, 2)
    kernel = (BLOCK * rows, BLOCK * columns)
    own = constant(np.ascontiguousarray(places).reshape(outputs, blocks.channels, *kernel), FLOAT)
    strides, pads = (
        [BLOCK * number for number in numbers] for numbers in (ops.Conv(root).strides, ops.Conv(root).pads)
    )
    operands = [blocks.image, own, *root.inputs[2:]]
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
    (channels,) = need_fixed(dims(image, 4)[1:2], "the number of channels is not fixed", image)
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
    batch, *sizes = dims(image, 4)
    channels, height, width = need_fixed(sizes, "the image's size is not known", image)
    rows, columns = height // BLOCK, width // BLOCK
    wanted = (batch, channels, rows, BLOCK, columns, BLOCK)
    need(height % BLOCK == width % BLOCK == 0 < height * width, "the blocks do not fill the image", image)
    need(all(map(same_dim, dims(apart, 6), wanted)), "the blocks are not of 2x2", split)
    whole = (batch, channels * BLOCK * BLOCK, rows, columns)
    need(all(map(same_dim, dims(result, 4), whole)), "the blocks are joined otherwise", joined)
    return Blocks((joined, transpose, split), image, channels, channel_first=order == CHANNELS_FIRST)


PHASE, PHASE_OF_ANY_SIZE = (Form("", "Conv", f"for each phase of a larger image{of}") for of in ("", " of any size"))
REPEATS = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""The form of a Resize that repeats elements (`nearest_resize_canonicalization`)."""


class UpsampledConvDecomposition(CpuRule[Match]):
    """``Conv(Resize(x))`` → ``DepthToSpace(Concat(Conv(x), Conv(x), …))`` for a Resize that repeats each pixel.

    A convolution of repeated pixels multiplies each of them several times; one convolution a phase does it once.

    Decoders of autoencoders, superresolution and segmentation enlarge an image so before they convolve it.

    What a pixel is multiplied with is added up in the weights of each phase of the result. Of small images and few
    channels, the phases cost more than they save.
    """

    targets = MEASURED_TARGETS
    roots = CONVOLUTIONS
    produces = ((MICROSOFT, "FusedConv"), ("", "DepthToSpace"))
    weighs = (PHASE, PHASE_OF_ANY_SIZE)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A dense kernel that keeps the size, of an image that is repeated along rows and columns alike."""
        image, weight, (_, channels, *kernel) = convolution(root, why=MEASURED)
        resize = producer(image, "Resize", alone="the larger image is used elsewhere")
        (scale, _) = scales = _scales(resize)
        need(scale > 1 and scales == (scale, scale), "it does not repeat rows and columns alike", resize)
        need(min(kernel) > 1, "the kernel reads one row or column", root)
        before = _padding(root, kernel)
        need_no_larger(np.abs(array_of(weight)), (1.0,), FLOAT, weight)
        (x,) = inputs(resize, 1)
        form = PHASE if all(isinstance(size, int) for size in dims(x)[1:]) else PHASE_OF_ANY_SIZE
        side = min((size for size in dims(x)[2:] if isinstance(size, int)), default=None)
        check_faster(resize, form, channels=channels, side=side, scale=scale)
        return Match((root, resize), lambda: _phases(root, x, scale, before))


def _phases(root: ir.Node, x: ir.Value, scale: int, before: Sequence[int]) -> ir.Node:
    """Build a convolution for each phase, and bring their results together.

    Args:
        root: The convolution.
        x: The smaller image.
        scale: How often a row and a column are repeated.
        before: The padding above and on the left.
    """
    places = itertools.product(range(scale), repeat=2)
    phases = [_phase(root, x, scale, [offset - pad for offset, pad in zip(at, before, strict=True)]) for at in places]
    channels = ir.node("Concat", phases, {"axis": 1})
    return ir.node("DepthToSpace", channels.outputs, {"blocksize": scale, "mode": "DCR"})


def _scales(resize: ir.Node) -> tuple[int, int]:
    """How often a Resize of an image repeats rows and columns."""
    (x,) = inputs(resize, 1)
    dims(x, rank=4)
    plain_attributes(resize)
    defaults = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
    modes = {name: attribute(resize, name, default) for name, default in defaults.items()}
    need(modes == REPEATS, "it does not repeat pixels", resize)
    need(not ops.Resize(resize).names_axes and optional(resize, 3) is None, "its scales are not known", resize)
    numbers = small_array(optional(resize, 2)).astype(np.float64)
    need(numbers.shape == (4,), "its scales are not known", resize)
    need(bool((numbers == np.floor(numbers)).all() and (numbers >= 1).all()), "a scale is not whole", resize)
    need(numbers[0] == numbers[1] == 1, "it repeats images or channels", resize)
    return int(numbers[2]), int(numbers[3])


def _padding(root: ir.Node, kernel: Sequence[int]) -> tuple[int, int]:
    """The padding above and on the left of a convolution whose result is as large as its image."""
    need(ops.Conv(root).moves_by_one, "it has strides or dilations", root)
    pads = ops.Conv(root).pads
    need(len(pads) == 4 and min(pads) >= 0, "its padding is no frame around the image", root)
    keeps = pads[0] + pads[2] == kernel[0] - 1 and pads[1] + pads[3] == kernel[1] - 1
    need(keeps, "its result is not as large as its image", root)
    return pads[0], pads[1]


def _phase(root: ir.Node, x: ir.Value, scale: int, offsets: Sequence[int]) -> ir.Value:
    """The pixels of the result that are a number of rows and columns away from where a pixel of x is repeated."""
    weight = array_of(root.inputs[1]).astype(np.float64)
    first, last = [], []
    for axis, offset in enumerate(offsets, start=2):
        sources = [(offset + place) // scale for place in range(weight.shape[axis])]
        lengths = np.flatnonzero(np.diff(sources, prepend=sources[0] - 1))
        weight = np.add.reduceat(weight, lengths, axis=axis)
        first.append(-sources[0])
        last.append(sources[-1])
    operands = [x, constant(weight.astype(np.float32), FLOAT), *root.inputs[2:3]]
    return ops.copied(root, operands, kernel_shape=None, auto_pad=None, pads=(*first, *last)).outputs[0]

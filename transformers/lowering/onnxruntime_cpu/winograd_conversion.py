"""Convolutions with kernels of 3×3 as products of the points of tiles, of which there are fewer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster, is_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Dim,
    array_of,
    dims,
    inputs,
    is_constant,
    need,
    need_fixed,
    need_float32,
    opset,
    optional,
    plain_attributes,
    same_dim,
    static_dims,
)
from ortopt.ops.reader import split_node
from ortopt.options import Numerics
from ortopt.patterns.convolutions import separate_activation
from ortopt.rule import Match
from ortopt.semantics.opset_changes import PADS_ARE_AN_INPUT_FROM
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import (
    CONVOLUTIONS,
    IMAGE,
    channels_first,
    channels_last,
)
from ortopt.transformers.lowering.onnxruntime_cpu._rules import AND_ON_THE_WEB, MEASURED, CpuRule

SMALL_TILES: Final = Form("", "MatMul", "of the points of tiles of 4×4")
LARGE_TILES: Final = Form("", "MatMul", "of the points of tiles of 6×6")

KERNEL: Final = 3
MOST_GIVEN: Final = 1.35
"""Results of tiles for each that is needed."""


class Filtering(Struct, frozen=True):
    """Matrices by which few products give a correlation with a kernel of 3.

    Along one axis, ``of_products · ((of_kernel · w) * (of_tile · x))`` is the correlation of x with w: F(m, 3) of Lavin
    and Gray, Fast Algorithms for Convolutional Neural Networks, 2015, section 4.

    Attributes:
        of_tile: Sums of the places of a tile: [points, places].
        of_kernel: Sums of those of a kernel: [points, 3].
        of_products: Sums of the products: [results, points].
    """

    of_tile: np.ndarray
    of_kernel: np.ndarray
    of_products: np.ndarray

    @property
    def side(self) -> int:
        """Results along an axis of a tile."""
        return len(self.of_products)

    @property
    def tile(self) -> int:
        """Places along an axis of a tile, and points."""
        return len(self.of_tile)


def _filtering(*points: float) -> Filtering:
    """The matrices of Cook and Toom for products of polynomials at some points, and at infinity.

    A product of polynomials is the one through its values at the points; see Blahut, Fast Algorithms for Signal
    Processing, 2010, section 5.2. Sums of tiles and of products are exact: the points are fractions of powers of two.
    """
    others = [[place for place in points if place != point] for point in points]
    scales = [np.prod([point - other for other in rest]) for point, rest in zip(points, others, strict=True)]
    size, side = len(points) + 1, len(points) + 2 - KERNEL
    of_tile = np.zeros((size, size))
    for row, roots in enumerate([*others, list(points)]):
        coefficients = np.poly(roots)[::-1]
        of_tile[row, : len(coefficients)] = coefficients
    powers = np.vander(points, max(side, KERNEL), increasing=True)
    of_kernel = np.vstack([powers[:, :KERNEL] / np.array(scales)[:, None], np.eye(KERNEL)[-1:]])
    of_products = np.vstack([powers[:, :side], np.eye(side)[-1:]]).T
    return Filtering(of_tile, of_kernel, of_products)


SMALL: Final = _filtering(0, 1, -1)
LARGE: Final = _filtering(0, 0.75, -0.75, 1.5, -1.5)
"""These points round a third as much as 0, ±1 and ±2: 4 to 6 of 10^6 parts of the results, at most, where a convolution
rounds 1 to 2, and tiles of 4×4 as much."""


class WinogradConversion(CpuRule[Match]):
    """``Conv(x, W)`` with kernels of 3×3 → ``MatMul`` for each of the 36 or 16 points of transformed tiles.

    Winograd's filtering: 4×4 results take 36 products of sums of neighbours instead of 144, or 2×2 take 16 of 36.

    Sums of the rows and columns of a tile are multiplied by those of the kernel, point by point, and the sums of all
    channels at a point are a product of matrices. What the sums cost is little beside it where channels are many. Tiles
    of 6×6, which give 4×4 results, are for images of several tiles, those of 4×4 for small ones. In memory the weights
    grow to four times their size, or to 16/9 of it.

    Sums of neighbours round otherwise, by as much as a convolution does, or a few times as much. An infinity makes NaN
    of the results beside those that read it.
    """

    targets = AND_ON_THE_WEB
    after = (
        "channel_gate_conversion",
        "conv_add_activation_fusion",
        "few_output_conv_unrolling",
        "interpolated_conv_decomposition",
        "resize_projection_reordering",
        "shuffled_conv_fusion",
        "unit_convolution_conversion",
        "upsampled_conv_decomposition",
    )
    roots = CONVOLUTIONS
    weighs = (SMALL_TILES, LARGE_TILES)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Match:
        """A dense kernel with constant weights, many channels on both sides, and an image of known size."""
        x, weight = inputs(root, 2)
        need_float32(x, MEASURED)
        plain_attributes(root)
        outputs, channels, *kernel = static_dims(weight, IMAGE)
        need(kernel == [KERNEL, KERNEL], "the kernel is not of 3×3", weight)
        conv = ops.Conv(root)
        need(conv.is_plain, "it has groups, strides or dilations", root)
        need(min(conv.pads) >= 0, "its padding crops the image", root)
        need(is_constant(weight), "its weights are no constant", weight)
        need(opset(root, "") >= PADS_ARE_AN_INPUT_FROM["Pad"], "before opset 11 a Pad has no inputs", root)
        batch, *sizes = dims(x, IMAGE)
        _, height, width = need_fixed(sizes, "the image's size is not known", x)
        rows, columns = (size + sum(conv.pads[axis::2]) - KERNEL + 1 for axis, size in enumerate((height, width)))
        need(min(rows, columns) > 0, "the result is empty", root)
        known: dict[str, Dim | Sequence[Dim]] = {
            "channels": channels,
            "outputs": outputs,
            "pixels": (batch, rows, columns),
        }
        large, small = (Image(way, (height, width), (rows, columns), conv.pads[:2]) for way in (LARGE, SMALL))
        if large.is_covered and is_faster(root, LARGE_TILES, **known):
            return Match((root,), lambda: _of_points(root, large))
        need(small.is_covered, "tiles cover much more than the result", root)
        check_faster(root, SMALL_TILES, **known)
        return Match((root,), lambda: _of_points(root, small))


class Image(Struct, frozen=True):
    """How an image is divided into tiles. All sizes are rows and columns.

    Attributes:
        filtering: The sums of a tile.
        size: What is convolved.
        result: What comes of it.
        before: Zeros above and on the left of what is convolved.
    """

    filtering: Filtering
    size: tuple[int, ...]
    result: tuple[int, int]
    before: tuple[int, ...]

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles there are; the last ones may give results that nobody needs."""
        rows, columns = (-(-size // self.filtering.side) for size in self.result)
        return rows, columns

    @property
    def padded(self) -> tuple[int, int]:
        """What the tiles cover."""
        rows, columns = (self.filtering.side * count + KERNEL - 1 for count in self.tiles)
        return rows, columns

    @property
    def behind(self) -> tuple[int, ...]:
        """Zeros below and on the right."""
        sizes = zip(self.padded, self.size, self.before, strict=True)
        return tuple(padded - size - before for padded, size, before in sizes)

    @property
    def is_covered(self) -> bool:
        """Whether the tiles give little more than the result."""
        given = math.prod(self.tiles) * self.filtering.side**2
        return given <= MOST_GIVEN * math.prod(self.result)

    def places(self) -> np.ndarray:
        """For each point of a tile, where it lies in what the tiles cover, by tiles."""
        (rows, columns), (_, width) = self.tiles, self.padded
        points = np.arange(self.filtering.tile)
        inner = points[:, None] * width + points
        first = self.filtering.side * (np.arange(rows)[:, None] * width + np.arange(columns))
        return (inner.reshape(-1, 1) + first.reshape(-1)).astype(np.int32)


def _of_points(root: ir.Node, image: Image) -> ir.Value:
    """Build the products, and the image that they give."""
    x, weight = inputs(root, 2)
    outputs, channels, *_ = static_dims(weight, IMAGE)
    count = image.filtering.tile**2
    points = _shaped(_summed(image.filtering.of_tile, _points(x, image, channels)), count, -1, channels)
    parts = split_node(points, 0, [1] * count, opset(root, "")).outputs
    matrices = _matrices(weight, image.filtering, opset(root, ""))
    products = [ir.node("MatMul", pair).outputs[0] for pair in zip(parts, matrices, strict=True)]
    results = _summed(image.filtering.of_products, ir.node("Concat", products, {"axis": 0}).outputs[0])
    whole = _joined(results, image, outputs, is_one=same_dim(dims(x)[0], 1))
    bias, summand = optional(root, 2), optional(root, 3)
    if bias is not None:
        whole = ir.node("Add", [whole, bias]).outputs[0]
    if summand is not None:
        return separate_activation(root, ir.node("Add", [channels_first(whole), summand]).outputs[0])
    return channels_first(separate_activation(root, whole))


def _points(x: ir.Value, image: Image, channels: int) -> ir.Value:
    """The channels of each image at each point of each tile: [points, tiles, batch, channels].

    The batch is within: ONNX Runtime's MatMul does not repeat a matrix for a batch of none.
    """
    value, (rows, columns) = channels_last(x), image.padded
    if any((*image.before, *image.behind)):
        value = ir.node("Pad", [value, constant([0, *image.before, 0, 0, *image.behind, 0])]).outputs[0]
    if same_dim(dims(x)[0], 1):
        pixels = _shaped(value, rows * columns, channels)
    else:
        pixels = _exchanged(_shaped(value, -1, rows * columns, channels))
    return ir.node("Gather", [pixels, constant(image.places())], {"axis": 0}).outputs[0]


def _joined(results: ir.Value, image: Image, outputs: int, *, is_one: bool) -> ir.Value:
    """The images of all tiles, channels last.

    Args:
        results: [rows and columns of a tile, tiles and batch and outputs].
        image: The sizes.
        outputs: How many channels they have.
        is_one: Whether there is one image.
    """
    side, tiles = image.filtering.side, image.tiles
    height, width = (side * count for count in tiles)
    turned = ir.node("Transpose", [_shaped(results, side, side, *tiles, -1)], {"perm": (2, 0, 3, 1, 4)}).outputs[0]
    if not is_one:
        turned = _exchanged(_shaped(turned, height * width, -1, outputs))
    whole = _shaped(turned, -1, height, width, outputs)
    if image.result == (height, width):
        return whole
    return ir.node("Slice", [whole, *map(constant, ([0, 0], image.result, [1, 2]))]).outputs[0]


def _exchanged(value: ir.Value) -> ir.Value:
    """Rows of channels with the first two axes exchanged."""
    return ir.node("Transpose", [value], {"perm": (1, 0, 2)}).outputs[0]


def _summed(matrix: np.ndarray, value: ir.Value) -> ir.Value:
    """Sums by a matrix for either axis of a tile.

    Args:
        matrix: What is summed along one axis: [sums, places].
        value: [rows and columns of places, …].
    """
    sums = constant(np.kron(matrix, matrix).astype(np.float32))
    return ir.node("MatMul", [sums, _shaped(value, matrix.shape[1] ** 2, -1)]).outputs[0]


def _shaped(value: ir.Value, *shape: int) -> ir.Value:
    """The same elements with these dimensions, one of which may be -1."""
    return ir.node("Reshape", [value, constant(shape)]).outputs[0]


def _matrices(weight: ir.Value, filtering: Filtering, version: int) -> Sequence[ir.Value]:
    """The matrix for each point of a tile: [channels, outputs].

    ONNX Runtime computes them when it loads the model: the file keeps the weights as they are, in another order.
    """
    outputs, channels, *_ = static_dims(weight, IMAGE)
    kernels = np.ascontiguousarray(array_of(weight).transpose(2, 3, 1, 0)).reshape(-1, channels, outputs)
    rows = _shaped(_summed(filtering.of_kernel, constant(kernels, FLOAT)), -1, outputs)
    return split_node(rows, 0, [channels] * filtering.tile**2, version).outputs

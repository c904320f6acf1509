"""Convolutions with kernels of 3×3 as products of the points of tiles, of which there are fewer."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

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
    need_float32,
    opset,
    optional,
    plain_attributes,
    static_dims,
)
from ortopt.ops.reader import split_node
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.patterns.convolutions import elements_of_an_image, is_filled_image, separate_activation
from ortopt.rule import Match
from ortopt.semantics.opset_changes import PADS_ARE_AN_INPUT_FROM
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import (
    CONVOLUTIONS,
    IMAGE,
    channels_first,
    channels_last,
)
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule
from ortopt.views.layouts import size_along

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

    targets = MEASURED_TARGETS
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
        """A dense kernel with constant weights, many channels on both sides, and images that are no slivers."""
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
        need(0 not in dims(x, IMAGE), "there is no image", x)  # Reshape would copy another dimension for 0
        need(is_filled_image(x, root), "the image may have no rows or columns, which a convolution refuses", x)
        result = root.outputs[0]
        pixels = (dims(x, IMAGE)[0], *elements_of_an_image(result, root)[1:])
        known: dict[str, Dim | Sequence[Dim]] = {"channels": channels, "outputs": outputs, "pixels": pixels}
        if _covers_little_more(LARGE, result) and is_faster(root, LARGE_TILES, **known):
            return Match((root,), lambda: _of_points(root, LARGE))
        need(_covers_little_more(SMALL, result), "tiles cover much more than the result", root)
        check_faster(root, SMALL_TILES, **known)
        return Match((root,), lambda: _of_points(root, SMALL))


def _covers_little_more(way: Filtering, result: ir.Value) -> bool:
    """Whether tiles give few results that nobody needs, as far as sizes are known."""
    sizes = [size for size in dims(result, IMAGE)[2:] if isinstance(size, int)]
    given = math.prod(-(-size // way.side) * way.side for size in sizes)
    return given <= MOST_GIVEN * math.prod(sizes)


Size: TypeAlias = int | ir.Value
"""A number, or a vector of the one that is computed when the model runs."""

CALCULATION: Final[Mapping[str, Callable[[int, int], int]]] = {
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.floordiv,
}


def _calculated(op: str, first: Size, second: Size) -> Size:
    """What an op on integers gives."""
    if isinstance(first, int) and isinstance(second, int):
        return CALCULATION[op](first, second)
    return ir.node(op, [_vector(first), _vector(second)]).outputs[0]


def _vector(*sizes: Size) -> ir.Value:
    """A vector of several sizes."""
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes):
        return constant(known)
    values = [constant([size]) if isinstance(size, int) else size for size in sizes]
    return values[0] if len(values) == 1 else ir.node("Concat", values, {"axis": 0}).outputs[0]


class Tiles(Struct, frozen=True):
    """How images are divided.

    Attributes:
        way: The sums of a tile.
        batch: How many images there are; -1 where that is not known.
        sizes: Rows and columns of an image, the zeros around it included.
    """

    way: Filtering
    batch: int
    sizes: tuple[Size, Size]

    @property
    def counts(self) -> list[Size]:
        """Rows and columns of tiles; the last ones may give results that nobody needs."""
        return [_calculated("Div", _calculated("Sub", size, KERNEL - 1), self.way.side) for size in self.sizes]

    @property
    def covered(self) -> list[Size]:
        """Rows and columns of what the tiles give."""
        return [_calculated("Mul", count, self.way.side) for count in self.counts]

    @property
    def needed(self) -> list[Size]:
        """Rows and columns of the result."""
        return [_calculated("Sub", size, KERNEL - 1 + self.way.side - 1) for size in self.sizes]

    def places(self) -> ir.Value:
        """For each point of a tile, where it lies in an image, by tiles: [points, tiles]."""
        side, width = self.way.side, self.sizes[1]
        row, column = np.divmod(np.arange(self.way.tile**2)[:, None], self.way.tile)
        down, across = self.counts
        if isinstance(down, int) and isinstance(across, int) and isinstance(width, int):
            first = side * (np.arange(down)[:, None] * width + np.arange(across))
            return constant((row * width + column + first.reshape(-1)).astype(np.int32))
        wide = _vector(width)
        rows = ir.node("Mul", [_shaped(_numbers(down), -1, 1), wide]).outputs[0]
        corners = ir.node("Mul", [ir.node("Add", [rows, _numbers(across)]).outputs[0], constant([side])]).outputs[0]
        inner = ir.node("Add", [ir.node("Mul", [constant(row), wide]).outputs[0], constant(column)]).outputs[0]
        return ir.node("Add", [inner, _shaped(corners, 1, -1)]).outputs[0]


def _numbers(count: Size) -> ir.Value:
    """The numbers from 0 on, so many."""
    if isinstance(count, int):
        return constant(np.arange(count))
    return ir.node("Range", [constant(0), _shaped(count), constant(1)]).outputs[0]


def _of_points(root: ir.Node, way: Filtering) -> ir.Value:
    """Build the products, and the images that they give."""
    x, weight = inputs(root, 2)
    outputs, channels, *_ = static_dims(weight, IMAGE)
    pixels, tiles = _divided(x, channels, ops.Conv(root).pads, way)
    chosen = ir.node("Gather", [pixels, tiles.places()], {"axis": 0}).outputs[0]
    points = _shaped(_summed(way.of_tile, chosen), way.tile**2, -1, channels)
    parts = split_node(points, 0, [1] * way.tile**2, opset(root, "")).outputs
    matrices = _matrices(weight, way, opset(root, ""))
    products = [ir.node("MatMul", pair).outputs[0] for pair in zip(parts, matrices, strict=True)]
    whole = _joined(_summed(way.of_products, ir.node("Concat", products, {"axis": 0}).outputs[0]), tiles, outputs)
    bias, summand = optional(root, 2), optional(root, 3)
    if bias is not None:
        whole = ir.node("Add", [whole, bias]).outputs[0]
    if summand is not None:
        return separate_activation(root, ir.node("Add", [channels_first(whole), summand]).outputs[0])
    return channels_first(separate_activation(root, whole))


def _divided(x: ir.Value, channels: int, pads: Sequence[int], way: Filtering) -> tuple[ir.Value, Tiles]:
    """All channels of all pixels, [pixels, batch, channels], and how they are divided.

    There are zeros for the last row and column of tiles, too. The batch is within, and left out where it is 1: ONNX
    Runtime's MatMul does not repeat a matrix for a batch of none.
    """
    batch, _, *image = dims(x, IMAGE)
    (top, left, bottom, right), more = pads, way.side - 1
    zeros = constant([0, top, left, 0, 0, bottom + more, right + more, 0])
    value = ir.node("Pad", [channels_last(x), zeros]).outputs[0]
    around = top + bottom + more, left + right + more
    height, width = (
        size + added if isinstance(size, int) else size_along(value, axis)
        for axis, (size, added) in enumerate(zip(image, around, strict=True), 1)
    )
    tiles = Tiles(way, batch if isinstance(batch, int) else -1, (height, width))
    if tiles.batch == 1:
        return _shaped(value, -1, channels), tiles
    turned = ir.node("Transpose", [value], {"perm": (1, 2, 0, 3)}).outputs[0]
    shape = _vector(_calculated("Mul", height, width), tiles.batch, channels)
    return ir.node("Reshape", [turned, shape]).outputs[0], tiles


def _joined(results: ir.Value, tiles: Tiles, outputs: int) -> ir.Value:
    """The images of all tiles, channels last.

    Args:
        results: [rows and columns of a tile, tiles and batch and outputs].
        tiles: How they were divided.
        outputs: How many channels they have.
    """
    side, covered, needed = tiles.way.side, tiles.covered, tiles.needed
    apart = ir.node("Reshape", [results, _vector(side, side, *tiles.counts, -1)]).outputs[0]
    value = ir.node("Transpose", [apart], {"perm": (2, 0, 3, 1, 4)}).outputs[0]
    if tiles.batch == 1:
        value = ir.node("Reshape", [value, _vector(1, *covered, outputs)]).outputs[0]
    else:
        images = ir.node("Reshape", [value, _vector(*covered, tiles.batch, outputs)]).outputs[0]
        value = ir.node("Transpose", [images], {"perm": (2, 0, 1, 3)}).outputs[0]
    if covered == needed:
        return value
    return ir.node("Slice", [value, constant([0, 0]), _vector(*needed), constant([1, 2])]).outputs[0]


def _summed(matrix: np.ndarray, value: ir.Value) -> ir.Value:
    """Sums by a matrix for either axis of a tile.

    Args:
        matrix: What is summed along one axis: [sums, places].
        value: [rows and columns of places, …].
    """
    sums = constant(np.kron(matrix, matrix).astype(np.float32))
    return ir.node("MatMul", [sums, _shaped(value, matrix.shape[1] ** 2, -1)]).outputs[0]


def _shaped(value: ir.Value, *shape: int) -> ir.Value:
    """The same elements with these dimensions, one of which may be -1; with none, a number."""
    return ir.node("Reshape", [value, constant(np.array(shape, np.int64))]).outputs[0]


def _matrices(weight: ir.Value, filtering: Filtering, version: int) -> Sequence[ir.Value]:
    """The matrix for each point of a tile: [channels, outputs].

    ONNX Runtime computes them when it loads the model: the file keeps the weights as they are, in another order.
    """
    outputs, channels, *_ = static_dims(weight, IMAGE)
    kernels = np.ascontiguousarray(array_of(weight).transpose(2, 3, 1, 0)).reshape(-1, channels, outputs)
    rows = _shaped(_summed(filtering.of_kernel, constant(kernels, FLOAT)), -1, outputs)
    return split_node(rows, 0, [channels] * filtering.tile**2, version).outputs

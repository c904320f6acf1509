"""Resize that interpolates an image: what each element of the result is a weighted sum of.

Rows and columns are interpolated one after the other, so two matrices say it all. Their weights are computed in single
precision, as ONNX Runtime's kernels compute them, which agree with the specification but for rounding.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import is_faster
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    dims,
    inputs,
    is_never_zero,
    need,
    need_fixed,
    need_float32,
    optional,
    plain_attributes,
    same_dim,
    small_array,
    tensor_of,
)

ONE = np.float32(1)
HALF = np.float32(0.5)

COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners")
PHASES = COORDINATES[:-1]
"""The transformations by which element ``k · i + r`` of an axis k times as long reads around ``i``, as r says."""

IN_PLACE_OF_PHASES = Form("", "MatMul", "of cubic interpolation in place of phases")

_ROUNDED = 32
"""Rows or columns from which the rounding of places shows.

It is 2⁻²⁴ of the size, times the weights' slope of 1.35, times what elements side by side differ by, which in noise is
five times their scale: 1.3e-5 of it here. At 120 rows, 5e-5 of a result were measured that also cuts off what is large.
"""

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


class Interpolation(Struct, frozen=True):
    """How a Resize interpolates.

    Attributes:
        mode: ``linear`` or ``cubic``.
        coordinates: The coordinate transformation mode.
        coefficient: Of cubic interpolation.
        excludes: Whether elements outside the image count nothing, instead of as those at its edge.
    """

    mode: str
    coordinates: str
    coefficient: float
    excludes: bool

    def matrix(self, before: int, after: int, scale: float) -> Matrix:
        """The weights by which elements of an axis become those of the result: a row for each of the result.

        Args:
            before: The size of the axis.
            after: Its size in the result.
            scale: How many times as long it becomes, as the kernel has it.
        """
        places = _places(self.coordinates, before, after, np.float32(scale))
        if self.mode == "linear":
            places = np.clip(places, np.float32(0), np.float32(before - 1))
        first = np.floor(places).astype(np.int64)
        rest = places - first.astype(np.float32)
        offsets: tuple[int, ...] = (0, 1)
        weights: tuple[Matrix, ...] = (ONE - rest, rest)
        if self.mode == "cubic":
            offsets, weights = (-1, 0, 1, 2), _cubic(rest, np.float32(self.coefficient))
        matrix = np.zeros((after, before), np.float32)
        for offset, weight in zip(offsets, weights, strict=True):
            source = first + offset
            inside = (source >= 0) & (source < before) if self.excludes else np.ones(after, bool)
            np.add.at(matrix, (np.arange(after)[inside], np.clip(source, 0, before - 1)[inside]), weight[inside])
        return matrix / matrix.sum(axis=1, keepdims=True) if self.excludes else matrix

    def phases(self, scale: int) -> Matrix:
        """The weights of the five elements around the one that a phase belongs to, a row for each phase.

        Args:
            scale: A whole number, how many times as long the axis becomes.
        """
        around = 8
        rows = self.matrix(2 * around + 1, (2 * around + 1) * scale, scale)[around * scale : (around + 1) * scale]
        return rows[:, around - 2 : around + 3]


class Image(Struct, frozen=True):
    """A Resize of an image along rows and columns.

    Attributes:
        x: The image, of four dimensions.
        interpolation: How.
        before: Height and width.
        after: Height and width of the result.
        scales: How many times as high and as wide it becomes.
        has_images: Whether the batch is never empty.
        has_channels: Whether each image has channels.
    """

    x: ir.Value
    interpolation: Interpolation
    before: tuple[Dim, Dim]
    after: tuple[Dim, Dim]
    scales: tuple[float, float]
    has_images: bool
    has_channels: bool

    @property
    def is_fixed(self) -> bool:
        """Whether its sizes, but for the number of images, are known, and not 0."""
        return all(isinstance(size, int) and size > 0 for size in (*self.before, *self.after))

    @property
    def has_products(self) -> bool:
        """Whether it can be multiplied by matrices: its sizes are known."""
        return self.is_fixed and self.has_channels

    def prefers_products(self, root: ir.Node) -> bool:
        """Whether products are faster than a convolution for each phase; an empty batch needs transpositions, too."""
        if not self.has_products or not self.has_images:
            return False
        return is_faster(root, IN_PLACE_OF_PHASES, multiplications=ceil(self.multiplications))

    def matrices(self) -> tuple[Matrix, Matrix]:
        """The weights of rows, and those of columns; of fixed sizes."""
        rows, columns = (
            self.interpolation.matrix(before, after, scale)
            for before, after, scale in zip(self.before, self.after, self.scales, strict=True)
            if isinstance(before, int) and isinstance(after, int)
        )
        return rows, columns

    @property
    def multiplications(self) -> float:
        """How many an element of the result takes where the image is multiplied by two matrices; of fixed sizes."""
        height, width, rows = need_fixed((*self.before, self.after[0]), "a size is not fixed", self.x)
        return height + width * height / rows

    @property
    def has_phases(self) -> bool:
        """Whether each element becomes a square of elements whose weights depend on their place in it only."""
        scale = self.scales[0]
        alike = self.interpolation.coordinates in PHASES and not self.interpolation.excludes
        return alike and self.scales == (scale, scale) and scale > 1 and scale == int(scale)

    @property
    def is_rounded(self) -> bool:
        """Whether it may be seen that the kernel rounds where an element lies: in large images, or of any size.

        The place is 2⁻²⁴ of the size off, and the weights with it: 2e-4 of the result at 1024 rows. Which elements are
        read never changes, as places on an element are exact. Scales that are powers of two round nothing.
        """
        large = any(not isinstance(size, int) or size > _ROUNDED for size in self.before)
        return large and any(scale != int(scale) or int(scale).bit_count() != 1 for scale in self.scales)


def interpolated(root: ir.Node) -> Image:
    """An image that a Resize interpolates.

    Args:
        root: The Resize.

    Raises:
        Refusal: If it resizes something else, or otherwise.
    """
    mode = attribute(root, "mode", "nearest")
    need(mode in ("linear", "cubic"), "it does not interpolate", root)
    plain_attributes(root)
    coordinates = attribute(root, "coordinate_transformation_mode", "half_pixel")
    need(coordinates in COORDINATES, f"{coordinates} depends on more than sizes", root)
    need(attribute(root, "antialias", 0) == 0, "it is smoothed before (antialias)", root)
    need(attribute(root, "keep_aspect_ratio_policy", "stretch") == "stretch", "the sizes are only bounds", root)
    (x,) = inputs(root, 1)
    need_float32(x, "the gain was measured")
    before, after = dims(x, rank=4), dims(root.outputs[0], rank=4)
    need(all(map(same_dim, before[:2], after[:2])), "it resizes batch or channels", root)
    excludes = mode == "cubic" and attribute(root, "exclude_outside", 0) == 1
    coefficient = attribute(root, "cubic_coeff_a", -0.75)
    scales = _scales(root, before, after)
    how = Interpolation(mode, coordinates, coefficient, excludes)
    has_images, has_channels = (is_never_zero(size, root) for size in before[:2])
    return Image(x, how, (before[2], before[3]), (after[2], after[3]), scales, has_images, has_channels)


def _scales(root: ir.Node, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> tuple[float, float]:
    """How many times as high and as wide the image becomes, as single precision has it."""
    axes = ops.Resize(root).axes
    given = optional(root, 2)
    if given is not None and tensor_of(given).size > 0:
        numbers = small_array(given).astype(np.float32).reshape(-1)  # ONNX Runtime takes them in any shape
        need(len(numbers) == len(axes), "there are other numbers of axes and of scales", root)
        listed = dict(zip(axes, numbers, strict=True))
        need(all(listed.get(axis, ONE) == 1 for axis in (0, 1)), "it resizes batch or channels", root)
        return float(listed.get(2, ONE)), float(listed.get(3, ONE))
    scales = []
    for size, result in zip(before[2:], after[2:], strict=True):
        if not isinstance(size, int) or not isinstance(result, int) or size == 0:
            raise Refusal("the sizes are not known", root)
        scales.append(float(np.float32(result) / np.float32(size)))
    return scales[0], scales[1]


def _places(coordinates: str, before: int, after: int, scale: np.float32) -> Matrix:
    """Where in the image the elements of the result lie."""
    places = np.arange(after, dtype=np.float32)
    if scale == 1:
        return places
    if coordinates == "asymmetric":
        return places / scale
    if coordinates == "align_corners":
        return places * np.float32(before - 1) / np.float32(after - 1) if after > 1 else places
    if coordinates == "pytorch_half_pixel" and after == 1:
        return places
    offset = np.float32(0)
    if coordinates == "half_pixel_symmetric":
        adjustment = np.float32(after) / (scale * np.float32(before))
        offset = np.float32(before) / np.float32(2) * (ONE - adjustment)
    return offset + (places + HALF) / scale - HALF


def _cubic(rest: Matrix, coefficient: np.float32) -> tuple[Matrix, ...]:
    """The weights of the four elements around a place that is so far behind the second of them."""

    def near(distance: Matrix) -> Matrix:
        return ((coefficient + 2) * distance - (coefficient + 3)) * distance * distance + ONE

    def far(distance: Matrix) -> Matrix:
        return ((coefficient * distance - 5 * coefficient) * distance + 8 * coefficient) * distance - 4 * coefficient

    return far(rest + ONE), near(rest), near(ONE - rest), far(np.float32(2) - rest)

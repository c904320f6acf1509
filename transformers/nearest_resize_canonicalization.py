"""Enlarging by whole numbers repeats elements, in whatever words; one spelling of it has the fast kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Refusal,
    attribute,
    dims,
    inputs,
    need,
    optional,
    plain_attributes,
    small_array,
    tensor_of,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

CANONICAL = ("asymmetric", "floor")

REPEATING = {
    CANONICAL,
    *((mode, nearest) for mode in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
      for nearest in ("round_prefer_ceil", "round_prefer_floor")),
    ("tf_half_pixel_for_nn", "floor"),
}  # fmt: skip
"""Coordinate and rounding modes in which element k · i + r of an axis that becomes k times as long is element i.

Half-pixel modes read from i + (r + 1/2)/k - 1/2, which is less than 1/2 away from i; tf_half_pixel_for_nn half an
element further, and rounds down.
"""


class Found(NamedTuple):
    """The Resize, and the scale of each axis."""

    nodes: tuple[ir.Node, ...]
    scales: tuple[int, ...]


class NearestResizeCanonicalization(RewriteRule[Found]):
    """``Resize`` by whole numbers that repeats elements → ``Resize(x, scales)``, asymmetric and rounding down.

    ONNX Runtime has a fast kernel for this spelling, and one on blocked layouts.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("resize_elimination",)
    roots = ("Resize",)
    opsets = (11, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Found:
        """Modes that repeat, and scales that are whole."""
        (x,) = inputs(root, 1)
        need(attribute(root, "mode", "nearest") == "nearest", "it interpolates", root)
        modes = (
            attribute(root, "coordinate_transformation_mode", "half_pixel"),
            attribute(root, "nearest_mode", "round_prefer_floor"),
        )
        need(modes in REPEATING, f"{modes[0]} with {modes[1]} may read from other places", root)
        need(attribute(root, "keep_aspect_ratio_policy", "stretch") == "stretch", "the sizes are only bounds", root)
        attributes = plain_attributes(root)
        scales = _scales(root, x)
        written = modes == CANONICAL and "axes" not in attributes and optional(root, 3) is None
        need(not written, "it is written so", root)
        return Found((root,), scales)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Resize; before opset 13, the region must be there, though nothing reads it."""
        root = found.nodes[0]
        scales = constant(np.array(found.scales, np.float32))
        attributes = {"mode": "nearest", "coordinate_transformation_mode": CANONICAL[0], "nearest_mode": CANONICAL[1]}
        return ir.node("Resize", [root.inputs[0], root.inputs[1], scales], attributes)


def _scales(root: ir.Node, x: ir.Value) -> tuple[int, ...]:
    """How many times as long each axis becomes."""
    shape = dims(x)
    every: tuple[int, ...] = tuple(range(len(shape)))
    axes = attribute(root, "axes", every)
    scales, sizes = optional(root, 2), optional(root, 3)
    if scales is not None and tensor_of(scales).size > 0:
        listed = small_array(scales).astype(np.float64)
        need(bool(np.all((listed >= 1) & (listed == np.floor(listed)))), "a scale is not whole", scales)
        numbers = [int(scale) for scale in listed]
    else:
        known = None if sizes is None else contents(sizes)
        if known is None:
            raise Refusal("the sizes are not known", root)
        fits = len(known) == len(axes) and all(-len(shape) <= axis < len(shape) for axis in axes)
        need(fits, "the axes do not fit", root)
        numbers = [_times(shape[axis], size, root) for axis, size in zip(axes, known, strict=True)]
    need(len(numbers) == len(axes), "the axes do not fit", root)
    result = [1] * len(shape)
    for axis, number in zip(axes, numbers, strict=True):
        result[axis] = number
    return tuple(result)


def _times(dim: object, size: object, root: ir.Node) -> int:
    """How many times a dimension is contained in a size."""
    whole = isinstance(dim, int) and isinstance(size, int) and dim > 0 and size >= dim and size % dim == 0
    need(whole, "a size is not known to be a multiple of the dimension", root)
    assert isinstance(dim, int)
    assert isinstance(size, int)
    return size // dim

"""Enlarging by whole numbers repeats elements, in whatever words; one spelling of it has the fast kernels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import attribute, inputs, need, optional, plain_attributes
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.convolution._whole_scales import whole_scales

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


class Found(Struct, frozen=True):
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
        plain_attributes(root)
        scales = whole_scales(root, x)
        written = modes == CANONICAL and not ops.Resize(root).names_axes and optional(root, 3) is None
        need(not written, "it is written so", root)
        return Found((root,), scales)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Resize; before opset 13, the region must be there, though nothing reads it."""
        root = found.nodes[0]
        scales = constant(np.array(found.scales, np.float32))
        attributes = {"mode": "nearest", "coordinate_transformation_mode": CANONICAL[0], "nearest_mode": CANONICAL[1]}
        return ir.node("Resize", [root.inputs[0], root.inputs[1], scales], attributes)

"""Sizes that are computed hide how much an image is enlarged; where they are multiples of its own, scales say it.

Models for any batch ask an image for its shape to enlarge another one to it. Nothing is computed for scales, and ONNX
Runtime has a kernel on blocked layouts for them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import attribute, inputs, is_constant, need, optional, plain_attributes
from ortopt.options import TransformerLevel
from ortopt.patterns.interpolation import COORDINATES
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.convolution._whole_scales import whole_scales


class Found(Struct, frozen=True):
    """The Resize, and the scale of each axis."""

    nodes: tuple[ir.Node, ...]
    scales: tuple[int, ...]


class LinearResizeCanonicalization(RewriteRule[Found]):
    """``Resize(x, sizes)`` that interpolates → ``Resize(x, scales)``, where computed sizes are whole multiples."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("resize_elimination",)
    roots = ("Resize",)
    opsets = (11, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Found:
        """Sizes that are no constant, but known to be multiples of the dimensions."""
        (x,) = inputs(root, 1)
        need(attribute(root, "mode", "nearest") in ("linear", "cubic"), "it repeats elements", root)
        mode = attribute(root, "coordinate_transformation_mode", "half_pixel")
        need(mode in COORDINATES, f"{mode} depends on more than sizes", root)
        need(attribute(root, "keep_aspect_ratio_policy", "stretch") == "stretch", "the sizes are only bounds", root)
        plain_attributes(root)
        sizes = optional(root, 3)
        need(sizes is not None and not is_constant(sizes), "no sizes are computed for it", root)
        return Found((root,), whole_scales(root, x))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Resize; before opset 13, the region must be there, though nothing reads it."""
        root = found.nodes[0]
        operands = [root.inputs[0], root.inputs[1], constant(np.array(found.scales, np.float32))]
        return ops.copied(root, operands, axes=None, keep_aspect_ratio_policy=None)

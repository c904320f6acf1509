"""Cubic interpolation to twice, three times … the size is a convolution of 5x5 elements for each phase of the result.

ONNX Runtime's kernel of cubic interpolation looks at each element of the result anew, for 75 ns and more; the
convolutions take a tenth of that or less.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, dims, need
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.image_sizes import is_filled_image
from ortopt.patterns.interpolation import IN_PLACE_OF_PHASES, Image, interpolated
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM = Form("", "Conv", "of the phases of cubic interpolation")
MARGIN = 2
"""How many elements before and behind the one of a phase are read."""


class Found(Struct, frozen=True):
    """The Resize, what it does, and the channels of its image."""

    nodes: tuple[ir.Node, ...]
    image: Image
    channels: int


class ResizeConvConversion(RewriteRule[Found]):
    """``Resize(x)``, cubic and by a whole number → ``DepthToSpace(Conv(Pad(x)))``.

    The kernels hold zeros: a NaN or an infinity makes NaN of the elements beside those that read it.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("resize_matmul_conversion",)
    roots = ("Resize",)
    opsets = (11, NEWEST_OPSET)
    providers = (CPU,)
    weighs = (FORM, IN_PLACE_OF_PHASES)
    targets = (Target.ORT,)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Found:
        """A whole scale, and an image that has an edge to repeat."""
        image = interpolated(root)
        need(image.interpolation.mode == "cubic", "linear interpolation has a fast kernel", root)
        need(image.has_phases, "its phases are not alike", root)
        check_faster(root, FORM, scale=int(image.scales[0]))
        need(not image.is_rounded, "the kernel's rounded places may show: the scale is no power of two", root)
        need(not image.prefers_products(root), "two products are faster", root)
        channels = dims(image.x)[1]
        need(isinstance(channels, int) and channels > 0, "the channels are not known", image.x)
        assert isinstance(channels, int)
        filled = is_filled_image(image.x, root)
        need(filled, "the image may have no rows or columns, and Pad repeats no edge of nothing", image.x)
        return Found((root,), image, channels)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the kernels of all phases, for each channel of its own."""
        image, scale = found.image, int(found.image.scales[0])
        weights = image.interpolation.phases(scale).astype(np.float64)
        kernels = np.einsum("ai,bj->abij", weights, weights).reshape(scale**2, 1, *(2 * MARGIN + 1,) * 2)
        pads = constant((0, 0, MARGIN, MARGIN, 0, 0, MARGIN, MARGIN))
        padded = ir.node("Pad", [image.x, pads], {"mode": "edge"})
        weight = constant(np.tile(kernels, (found.channels, 1, 1, 1)).astype(np.float32), FLOAT)
        phases = ir.node("Conv", [padded.outputs[0], weight], {"group": found.channels})
        return ir.node("DepthToSpace", phases.outputs, {"blocksize": scale, "mode": "CRD"})

"""ONNX Runtime's DepthToSpace moves single elements; two transpositions of matrices do the same faster.

On its CPU the kernel is a transposition of six axes, which for small blocks is slower than two of four axes.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, attribute, dims, inputs, need, need_float32, opset
from ortopt.options import Target, TransformerLevel
from ortopt.rule import RewriteRule

FORM = Form("", "Transpose", "twice in place of DepthToSpace")
MODES_FROM = 11
"""The version of DepthToSpace with modes: before, all are DCR."""


class Found(Struct, frozen=True):
    """The node, its mode, the size of a block, and sizes.

    Attributes:
        sizes: The batch, or None where it is not fixed; the channels of the result; the input's height and width.
    """

    nodes: tuple[ir.Node, ...]
    mode: str
    block: int
    sizes: tuple[int | None, int, int, int]


class DepthToSpaceDecomposition(RewriteRule[Found]):
    """``DepthToSpace(x)`` → two ``Transpose`` of four axes between ``Reshape``, for small blocks."""

    levels = (TransformerLevel.LEVEL3,)
    roots = ("DepthToSpace",)
    after = ("shuffled_conv_fusion",)
    providers = (CPU,)
    weighs = (FORM,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """A small block, and fixed dimensions besides the batch."""
        (x,) = inputs(root, 1)
        block = attribute(root, "blocksize", 0)
        need(block > 1, "it moves nothing", root)
        check_faster(root, FORM, scale=block)
        need_float32(x, "the kernel was measured")
        batch, *image = dims(x, 4)
        if not all(isinstance(dim, int) for dim in image):
            raise Refusal("a dimension is not fixed", x)
        depth, height, width = (dim for dim in image if isinstance(dim, int))
        need(height > 0 and width > 0, "the image has no elements: Reshape would copy another dimension for 0", x)
        mode = attribute(root, "mode", "DCR") if opset(root) >= MODES_FROM else "DCR"
        need(depth > 0 and depth % block**2 == 0, "the channels are no whole blocks", x)
        fixed = batch if isinstance(batch, int) else None
        return Found((root,), mode, block, (fixed, depth // block**2, height, width))

    def rewrite(self, found: Found) -> ir.Value:
        """Bring the columns of a block behind the columns of the image, then its rows behind the image's rows."""
        batch, channels, height, width = found.sizes
        block = found.block
        if found.mode == "CRD":  # [batch, channels, rows, columns of a block, height, width]
            first, second = (channels * block, block, height, width), (channels, block, height)
        else:  # [batch, rows, columns of a block, channels, height, width]
            first, second = (block, block, channels * height, width), (1, block, channels * height)
        blocks = ir.node("Reshape", [found.nodes[0].inputs[0], _times(batch, first)])
        columns = ir.node("Transpose", blocks.outputs, {"perm": (0, 2, 3, 1)})
        rows = ir.node("Reshape", [columns.outputs[0], _times(batch, (*second, width * block))])
        image = ir.node("Transpose", rows.outputs, {"perm": (0, 2, 1, 3)})
        whole = (1, channels, height * block, width * block)
        return ir.node("Reshape", [image.outputs[0], _times(batch, whole)]).outputs[0]


def _times(batch: int | None, shape: tuple[int, ...]) -> ir.Value:
    """The shape for Reshape of a batch of what has this shape; where that is not fixed, Reshape finds it."""
    return constant((-1 if batch is None else batch * shape[0], *shape[1:]))

"""ONNX Runtime interpolates images in its blocked layout twice as fast; a convolution that changes nothing begins it.

Decoders for depth and segmentation enlarge sums, products and what comes out of attention, which are in the usual
layout. Reordering them into blocks and back takes a fifth of what the other kernel takes longer.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK, RANK, blocked_layout, is_enlarged_in_blocks
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.context import Context
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, Refusal, attribute, dims, inputs, is_op, need, need_float32, same_dim
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.image_sizes import elements_of_an_image, is_filled_image
from ortopt.transformer import GraphTransformer

FORM = Form("", "Resize", "of blocks of channels")


class Found(Struct, frozen=True):
    """The Resize, its image, and the image's channels."""

    node: ir.Node
    x: ir.Value
    channels: int


class ResizeBlockConversion(GraphTransformer):
    """``Resize(x)``, linear and by whole numbers → ``Resize(Conv(x))``: single points of weight 1 begin the blocks.

    Where x is not in ONNX Runtime's blocked layout (``ortopt.analysis.blocked_layout``), and so large that the reorders
    and the convolution cost less than they save. What becomes of infinities at the edges differs.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("resize_matmul_conversion", "interpolated_conv_decomposition", "channel_affine_conversion")
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (FORM,)
    numerics = Numerics.FINITE
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Bring one after the other into blocks: what is behind it may be in blocks then, too."""
        changed = False
        found = []
        for node in context.cancellation.checked(tuple(graph)):
            if is_op(node, "Resize") and attribute(node, "mode", "nearest") == "linear":
                try:
                    found.append(_found(node))
                except Refusal as refusal:
                    context.refuse(node, refusal)
        for each in found:
            layout = blocked_layout(graph, token=context.cancellation)
            if each.node in layout.kernels:
                context.refuse(each.node, "it is in the blocked layout")
            else:
                changed |= _begin_blocks(each, context)
        return changed


def _found(node: ir.Node) -> Found:
    """A linear Resize that has a kernel in blocks.

    Raises:
        Refusal: If it has none, or if that was not measured to win.
    """
    x = inputs(node, 1)[0]
    need_float32(x, "the blocked kernels are")
    channels = dims(x, RANK)[1]
    if not isinstance(channels, int) or channels == 0 or channels % BLOCK:
        raise Refusal("its channels fill no blocks", x)
    need(is_enlarged_in_blocks(node), "no blocked kernel enlarges so", node)
    need(not all(map(same_dim, dims(x), dims(node.outputs[0]))), "it enlarges nothing", node)
    check_faster(node, FORM, channels=channels, image=elements_of_an_image(node.outputs[0]))
    need(is_filled_image(x, node), "the image may have no rows or columns, which a convolution refuses", x)
    return Found(node, x, channels)


def _begin_blocks(found: Found, context: Context) -> bool:
    """Put a convolution before the Resize."""
    weights = constant(np.ones((found.channels, 1, 1, 1), np.float32), FLOAT)
    blocks = ir.node("Conv", [found.x, weights], {"group": found.channels})
    node = found.node
    resize = ops.copied(node, [blocks.outputs[0], *node.inputs[1:]])
    return context.substitute(
        {node.outputs[0]: resize.outputs[0]}, before=node, origin=(node,), why="the blocked kernel is faster"
    )

"""Interpolation, which is linear in the image: as products, as a convolution for each phase, or in blocks."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK, RANK, blocked_layout, is_enlarged_in_blocks
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.context import Context
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    attribute,
    dims,
    inputs,
    is_op,
    need,
    need_fixed,
    need_float32,
    same_dim,
    static_dims,
    users,
)
from ortopt.options import MEASURED_TARGETS, Numerics, Target, TransformerLevel
from ortopt.patterns.convolutions import elements_of_an_image, is_convolution, is_filled_image
from ortopt.patterns.interpolation import IN_PLACE_OF_PHASES, Image, Matrix, interpolated
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.transformer import GraphTransformer
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import convolved
from ortopt.transformers.lowering.onnxruntime_cpu._rules import FOR_BLOCKS, CpuRule

BLOCKS = Form("", "Resize", "of blocks of channels")


class ResizeBlockConversion(GraphTransformer):
    """``Resize(x)``, linear and by whole numbers → ``Resize(Conv(x))``: single points of weight 1 begin the blocks.

    ONNX Runtime interpolates images in its blocked layout twice as fast; a convolution that changes nothing begins it.

    Decoders for depth and segmentation enlarge sums, products and what comes out of attention, which are in the usual
    layout. Reordering them into blocks and back takes a fifth of what the other kernel takes longer.

    Where x is not in ONNX Runtime's blocked layout (``ortopt.analysis.blocked_layout``), and so large that the reorders
    and the convolution cost less than they save. What becomes of infinities at the edges differs.
    """

    levels = (TransformerLevel.LEVEL3,)
    needs = ("Resize",)
    after = ("resize_matmul_conversion", "interpolated_conv_decomposition", "channel_affine_conversion")
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (BLOCKS,)
    numerics = Numerics.FINITE
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Bring one after the other into blocks: what is behind it may be in blocks then, too."""
        changed = False
        resizes = context.edit.index.nodes(graph, "Resize")
        linear = [node for node in resizes if attribute(node, "mode", "nearest") == "linear"]
        for node, channels in list(context.answered(linear, _channels)):
            layout = blocked_layout(graph, token=context.cancellation)
            if node in layout.kernels:
                context.refuse(node, "it is in the blocked layout")
            else:
                changed |= _begin_blocks(node, channels, context)
        return changed


def _channels(node: ir.Node) -> int:
    """The channels of a linear Resize that has a kernel in blocks.

    Raises:
        Refusal: If it has none, or if that was not measured to win.
    """
    x = inputs(node, 1)[0]
    need_float32(x, FOR_BLOCKS)
    (channels,) = need_fixed(dims(x, RANK)[1:2], "its channels fill no blocks", x)
    need(channels > 0 and channels % BLOCK == 0, "its channels fill no blocks", x)
    need(is_enlarged_in_blocks(node), "no blocked kernel enlarges so", node)
    need(not all(map(same_dim, dims(x), dims(node.outputs[0]))), "it enlarges nothing", node)
    check_faster(node, BLOCKS, channels=channels, image=elements_of_an_image(node.outputs[0], node))
    need(is_filled_image(x, node), "the image may have no rows or columns, which a convolution refuses", x)
    return channels


def _begin_blocks(node: ir.Node, channels: int, context: Context) -> bool:
    """Put a convolution before the Resize."""
    blocks = convolved(inputs(node, 1)[0], np.ones((channels, 1, 1, 1), np.float32), None, {"group": channels})
    (resized,) = ops.copied(node, [blocks, *node.inputs[1:]]).outputs
    return context.substitute(
        {node.outputs[0]: resized}, before=node, origin=(node,), why="the blocked kernel is faster"
    )


PHASES = Form("", "Conv", "of the phases of cubic interpolation")
MARGIN = 2
"""How many elements before and behind the one of a phase are read."""


class ResizeConvConversion(CpuRule[Match]):
    """``Resize(x)``, cubic and by a whole number → ``DepthToSpace(Conv(Pad(x)))``.

    Cubic interpolation to twice, three times … the size is a convolution of 5x5 elements for each phase of the result.

    ONNX Runtime's kernel of cubic interpolation looks at each element of the result anew, for 75 ns and more; the
    convolutions take a tenth of that or less.

    By scales that are no powers of two, the kernel rounds where in the image an element lies: to the last digit of the
    number of its row. The convolutions do not, and are nearer to the exact result. Of fixed sizes two products are
    made, which round as the kernel does; of open sizes, or of no known channels, there are none.

    The kernels hold zeros: a NaN or an infinity makes NaN of the elements beside those that read it.
    """

    targets = MEASURED_TARGETS
    after = ("resize_matmul_conversion",)
    roots = ("Resize",)
    opsets = (11, NEWEST_OPSET)
    weighs = (PHASES, IN_PLACE_OF_PHASES)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Match:
        """A whole scale, and an image that has an edge to repeat."""
        image = interpolated(root)
        need(image.interpolation.mode == "cubic", "linear interpolation has a fast kernel", root)
        need(image.has_phases, "its phases are not alike", root)
        check_faster(root, PHASES, scale=int(image.scales[0]))
        products = image.is_rounded and image.has_products
        need(not products, "the kernel's rounded places may show, and two products round alike", root)
        need(not image.prefers_products(root), "two products are faster", root)
        (channels,) = need_fixed(dims(image.x)[1:2], "the channels are not known", image.x)
        need(channels > 0, "the channels are not known", image.x)
        filled = is_filled_image(image.x, root)
        need(filled, "the image may have no rows or columns, and Pad repeats no edge of nothing", image.x)
        return Match((root,), lambda: _of_phases(image, channels))


def _of_phases(image: Image, channels: int) -> ir.Node:
    """Build the kernels of all phases, for each channel of its own."""
    scale = int(image.scales[0])
    weights = image.interpolation.phases(scale).astype(np.float64)
    kernels = np.einsum("ai,bj->abij", weights, weights).reshape(scale**2, 1, *(2 * MARGIN + 1,) * 2)
    pads = constant((0, 0, MARGIN, MARGIN, 0, 0, MARGIN, MARGIN))
    padded = ir.node("Pad", [image.x, pads], {"mode": "edge"}).outputs[0]
    weight = np.tile(kernels, (channels, 1, 1, 1)).astype(np.float32)
    return ir.node(
        "DepthToSpace", [convolved(padded, weight, None, {"group": channels})], {"blocksize": scale, "mode": "CRD"}
    )


LINEAR, CUBIC = (Form("", "MatMul", f"of {mode} interpolation") for mode in ("linear", "cubic"))


class ResizeMatmulConversion(CpuRule[Match]):
    """``Resize(x)`` that interpolates → ``MatMul(rows, MatMul(x, columns))`` for images of fixed sizes.

    Interpolation is linear in the image: of fixed sizes it is a product with one matrix for rows and one for columns.

    ONNX Runtime's kernel of cubic interpolation looks at each element of the result anew, for 75 ns and more; a product
    takes a hundredth of that. Linear interpolation has a fast kernel, and pays for small images only.

    Linear interpolation only where no convolution is beside it, whose blocked layout would end there; products of small
    matrices are slow, and those of large images are many. The matrices hold zeros: a NaN or an infinity makes NaN of
    its row and of its column.
    """

    targets = MEASURED_TARGETS
    after = ("resize_projection_reordering",)
    roots = ("Resize",)
    opsets = (11, NEWEST_OPSET)
    looks_downstream = True
    weighs = (LINEAR, CUBIC, IN_PLACE_OF_PHASES)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Match:
        """An image of fixed height and width."""
        image = interpolated(root)
        need(image.has_products, "height and width are not fixed, or there may be no channels", root)
        work = math.ceil(image.multiplications)
        if image.interpolation.mode == "linear":
            check_faster(root, LINEAR, multiplications=work, elements=math.prod(static_dims(root.outputs[0])))
            _check_no_blocks(root)
            return Match((root,), lambda: _products(image))
        check_faster(root, CUBIC, multiplications=work)
        if image.has_phases and not image.is_rounded:
            need(image.prefers_products(root), "a convolution for each phase is faster", root)
        return Match((root,), lambda: _products(image))


def _products(image: Image) -> ir.Node:
    """Multiply by the matrices of rows and columns.

    An axis that keeps its size is multiplied as well: the kernel reads the elements beside one there, too, and
    multiplies them by 0, so a NaN spreads along it.
    """
    of_rows, of_columns = image.matrices()
    right = constant(np.ascontiguousarray(of_columns.T), FLOAT)
    if not image.has_images:
        return ir.node("MatMul", [_with_rows(image.x, of_rows), right])
    return ir.node("MatMul", [constant(of_rows, FLOAT), ir.node("MatMul", [image.x, right]).outputs[0]])


def _with_rows(x: ir.Value, of_rows: Matrix) -> ir.Value:
    """Images multiplied by the matrix of rows from the right: with it on the left, MatMul takes no empty batch.

    Columns go before the channels: of two last axes that change places ONNX Runtime makes a FusedMatMul, which takes
    none either (before 1.32).
    """
    columns = ir.node("Transpose", [x], {"perm": (0, 3, 1, 2)})
    product = ir.node("MatMul", [columns.outputs[0], constant(np.ascontiguousarray(of_rows.T), FLOAT)])
    return ir.node("Transpose", product.outputs, {"perm": (0, 2, 3, 1)}).outputs[0]


def _check_no_blocks(root: ir.Node) -> None:
    """Refuse where the kernel of linear interpolation works on blocks of channels, and is as fast."""
    readers = users(root.outputs[0])
    joined = [user for reader in readers if is_op(reader, "Concat") for user in users(reader.outputs[0])]
    beside = [root.inputs[0].producer() if root.inputs[0] else None, *readers, *joined]
    blocked = any(is_convolution(node) for node in beside)
    need(not blocked, "a convolution beside it works on blocks of channels, as the kernel does", root)

"""Interpolation is linear in the image: of fixed sizes it is a product with one matrix for rows and one for columns.

ONNX Runtime's kernel of cubic interpolation looks at each element of the result anew, for 75 ns and more; a product
takes a hundredth of that. Linear interpolation has a fast kernel, and pays for small images only.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, is_op, need, static_dims, users
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.convolution_activation import is_convolution
from ortopt.patterns.interpolation import IN_PLACE_OF_PHASES, Image, Matrix, interpolated
from ortopt.rule import NEWEST_OPSET, RewriteRule

LINEAR, CUBIC = (Form("", "MatMul", f"of {mode} interpolation") for mode in ("linear", "cubic"))
TRANSPOSED = (0, 1, 3, 2)


class Found(Struct, frozen=True):
    """The Resize, and what it does."""

    nodes: tuple[ir.Node, ...]
    image: Image


class ResizeMatmulConversion(RewriteRule[Found]):
    """``Resize(x)`` that interpolates → ``MatMul(rows, MatMul(x, columns))`` for images of fixed sizes.

    Linear interpolation only where no convolution is beside it, whose blocked layout would end there; products of small
    matrices are slow, and those of large images are many. The matrices hold zeros: a NaN or an infinity makes NaN of
    its row and of its column.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("resize_projection_reordering",)
    roots = ("Resize",)
    opsets = (11, NEWEST_OPSET)
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (LINEAR, CUBIC, IN_PLACE_OF_PHASES)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Found:
        """An image of fixed height and width."""
        image = interpolated(root)
        need(image.has_products, "height and width are not fixed, or there may be no channels", root)
        work = math.ceil(image.multiplications)
        if image.interpolation.mode == "linear":
            check_faster(root, LINEAR, multiplications=work, elements=math.prod(static_dims(root.outputs[0])))
            _check_no_blocks(root)
            return Found((root,), image)
        check_faster(root, CUBIC, multiplications=work)
        if image.has_phases and not image.is_rounded:
            need(image.prefers_products(root), "a convolution for each phase is faster", root)
        return Found((root,), image)

    def rewrite(self, found: Found) -> ir.Node:
        """Multiply by the matrices of rows and columns.

        An axis that keeps its size is multiplied as well: the kernel reads the elements beside one there, too, and
        multiplies them by 0, so a NaN spreads along it.
        """
        image = found.image
        (height, width), (rows, columns) = image.before, image.after
        assert isinstance(height, int)
        assert isinstance(width, int)
        assert isinstance(rows, int)
        assert isinstance(columns, int)
        of_columns = image.interpolation.matrix(width, columns, image.scales[1])
        of_rows = image.interpolation.matrix(height, rows, image.scales[0])
        right = constant(np.ascontiguousarray(of_columns.T), FLOAT)
        if not image.has_images:
            return ir.node("MatMul", [_with_rows(image.x, of_rows), right])
        wide = ir.node("MatMul", [image.x, right])
        return ir.node("MatMul", [constant(of_rows, FLOAT), wide.outputs[0]])


def _with_rows(x: ir.Value, of_rows: Matrix) -> ir.Value:
    """Images multiplied by the matrix of rows from the right: with it on the left, MatMul takes no empty batch."""
    columns = ir.node("Transpose", [x], {"perm": TRANSPOSED})
    product = ir.node("MatMul", [columns.outputs[0], constant(np.ascontiguousarray(of_rows.T), FLOAT)])
    return ir.node("Transpose", product.outputs, {"perm": TRANSPOSED}).outputs[0]


def _check_no_blocks(root: ir.Node) -> None:
    """Refuse where the kernel of linear interpolation works on blocks of channels, and is as fast."""
    readers = users(root.outputs[0])
    joined = [user for reader in readers if is_op(reader, "Concat") for user in users(reader.outputs[0])]
    beside = [root.inputs[0].producer() if root.inputs[0] else None, *readers, *joined]
    blocked = any(is_convolution(node) for node in beside)
    need(not blocked, "a convolution beside it works on blocks of channels, as the kernel does", root)

"""A constant row that is added before a linear layer can be in the bias that the layer has."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.magnitudes import need_no_larger
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    need,
    operand_constant,
    operand_from,
    producer,
    static_dims,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The addition, the product and the bias; what goes into the product, and the new bias."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    bias: np.ndarray


class AddMatmulFusion(RewriteRule[Found]):
    """``MatMul(x + c, W) + b`` → ``MatMul(x, W) + (c · W + b)``.

    It runs at level 2, because at level 1 the summand may still be part of what another pass recognises.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("bias_add_fusion", "layer_norm_fusion", "scaled_residual_merging")
    roots = ("Add",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand of Add broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A number for each row of a constant matrix, and one for each column."""
        product, bias = operand_from(root, "MatMul")
        moved, weight = inputs(product, 2)
        addition = producer(moved, "Add")
        number, x = operand_constant(addition)
        need(dtype(x) in FLOATS and not is_constant(x), "it is no float", x)
        need(is_constant(weight) and is_constant(bias), "the layer's numbers are no constants", product)
        rows, columns = static_dims(weight, 2)
        need(len(dims(x)) > 1 and dims(x)[-1] == rows, "it would be enlarged", x)
        need(_is_row(number, rows, len(dims(x))), "it is not one number for each row of the matrix", number)
        need(_is_row(bias, columns, len(dims(x))), "the bias is not one number for each column", bias)
        matrix = array_of(weight).astype(np.float64)
        shift = np.broadcast_to(array_of(number).astype(np.float64).reshape(-1), (rows,))
        total = array_of(bias).astype(np.float64).reshape(-1) + shift @ matrix
        with np.errstate(over="ignore"):
            rounded: np.ndarray = total.astype(dtype(x).numpy())
        need(bool(np.isfinite(rounded).all()), "a folded number would not be finite", root)
        need_no_larger(np.abs(shift), (1.0, np.abs(matrix).sum(axis=1)), dtype(x), number)
        return Found((addition, product, root), x, rounded)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the product and its bias."""
        weight = found.nodes[1].inputs[1]
        product = ir.node("MatMul", [found.x, weight])
        return ir.node("Add", [product.outputs[0], constant(found.bias, tensor_of(weight).dtype)])


def _is_row(value: ir.Value, size: int, rank: int) -> bool:
    shape = static_dims(value)
    return len(shape) <= rank and math.prod(shape[:-1]) == 1 and (shape or (1,))[-1] in (1, size)

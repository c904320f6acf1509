"""Two linear layers in a row can be one, which is cheaper unless the dimension between them is small."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.magnitudes import need_near
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOATS, array_of, dtype, inputs, is_used_once, need, producer, tensor_of
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule

MAX_WORK = 1 << 30
"""Multiplications that the product of the weights may take: about a second."""


class Found(Struct, frozen=True):
    """Both products, their first operand, and the product of the weights."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weight: np.ndarray


class MatmulReassociation(RewriteRule[Found]):
    """``(x · W1) · W2`` → ``x · (W1 · W2)`` where that has no more weights.

    Adapters of low rank stay as they are: with a small dimension in the middle, two products are cheaper.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding",)
    roots = ("MatMul",)
    numerics = Numerics.REORDERED
    lookback = 1

    def match(self, root: ir.Node) -> Found:
        """Constant matrices of floats."""
        middle, second = inputs(root, 2)
        product = producer(middle, "MatMul")
        need(is_used_once(middle), "the first product is used elsewhere", middle)
        x, first = inputs(product, 2)
        left, right = tensor_of(first), tensor_of(second)
        need(left.dtype in FLOATS and left.dtype == right.dtype, "the weights are no floats", first)
        need(len(left.shape) == len(right.shape) == 2, "the weights are no matrices", first)
        (rows, between), (again, columns) = left.shape.numpy(), right.shape.numpy()
        need(between == again and between > 0, "the weights do not fit one another", root)
        need(rows * columns <= between * (rows + columns), "both weights together are larger", root)
        need(rows * between * columns <= MAX_WORK, "the weights are large", root)
        with np.errstate(over="ignore", invalid="ignore"):
            exact = array_of(first).astype(np.float64) @ array_of(second).astype(np.float64)
            weight = exact.astype(left.dtype.numpy())  # rounded once
        need(bool(np.isfinite(weight).all()), "a weight would not be finite", first)
        gain = np.abs(array_of(first).astype(np.float64)).sum(axis=0)  # of the middle, for an x of magnitude 1
        need_near(gain, (1.0, np.abs(exact).sum(axis=0).max(initial=0.0)), left.dtype, middle)
        return Found((product, root), x, weight)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the one product."""
        return ir.node("MatMul", [found.x, constant(found.weight, dtype(found.x))])

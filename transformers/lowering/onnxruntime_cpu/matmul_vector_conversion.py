"""ONNX Runtime multiplies a vector row by row of a matrix, one call each; a matrix of one column is one call."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    DOUBLE,
    FLOAT,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    is_never_zero,
    need,
    opset,
    rank,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule

NEGATIVE_AXES_FROM = 11


class MatmulVectorConversion(RewriteRule[Forwarded]):
    """``MatMul(a, vector)`` → ``Squeeze(MatMul(a, Unsqueeze(vector)))``, on the CPU of ONNX Runtime.

    It gains the more, the more rows the matrix has.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("MatMul",)
    opsets = (NEGATIVE_AXES_FROM, NEWEST_OPSET)
    providers = (CPU,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Forwarded:
        """A matrix, or a stack of matrices, and a vector, both of floats."""
        left, right = inputs(root, 2)
        need(rank(right) == 1, "the second operand is no vector", right)
        need(rank(left) > 1, "the first operand is a vector", left)
        need(dtype(left) in (FLOAT, DOUBLE), "the kernel that is slow is one of floats", left)
        *rows, inner = dims(left)
        need(is_never_zero(inner, root), "of nothing ONNX Runtime clears one number of the result only", left)
        need(not all(isinstance(dim, int) and dim == 1 for dim in rows), "there is one row", left)
        options = scope.of(scope.graph_of(root)).options
        need(options.target is Target.ORT, "it is a form for ONNX Runtime", root)
        return Forwarded((root,), right)

    def rewrite(self, found: Forwarded) -> ir.Node:
        """Build the product with a matrix of one column."""
        (old,) = found.nodes
        vector = found.value
        if is_constant(vector):  # at this level, constants are not folded any more
            column = constant(array_of(vector).reshape(-1, 1), dtype(vector))
        else:
            column = ops.unsqueezed(vector, [1], opset(old))
        product = ir.node("MatMul", [old.inputs[0], column])
        return ops.node_along("Squeeze", product.outputs[0], [-1], opset(old))

"""A BatchNormalization scales columns of a constant matrix, also where the axes are moved before it."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.magnitudes import need_digits, need_scaled_near
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    Absent,
    array_of,
    inputs,
    is_op,
    need,
    rank,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.batch_normalization import scale_and_shift
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.linear._columns import LONGEST_PATH, moved, path_to


class Found(Struct, frozen=True):
    """The MatMul, the nodes that move its axes, in order, and the normalization; the new B; each column's summand."""

    nodes: tuple[ir.Node, ...]
    b: np.ndarray
    c: np.ndarray


class MatMulBnFusion(RewriteRule[Found]):
    """``BatchNormalization(MatMul(a, B))`` → ``Gemm(a, B', c)``, with Reshapes and Transposes between too.

    This holds only if the axes are moved so that the columns become the channels. (ONNX Runtime does not check that.)
    Where `a` is a stack of matrices, which Gemm does not take, it is ``Add(MatMul(a, B'), c)``.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("BatchNormalization",)
    opsets = (7, NEWEST_OPSET)
    lookback = LONGEST_PATH + 1
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A matrix times a constant matrix, and a path on which the columns become the second axis."""
        path, product = path_to(inputs(root, 1)[0])
        node = product.producer()
        if node is None or not is_op(node, "MatMul"):
            raise Absent("no MatMul comes before", root)
        a, weight = inputs(node, 2)
        need(rank(a) >= 2, "it multiplies a vector", a)
        tensor = tensor_of(weight)
        need(tensor.dtype in FLOATS and len(tensor.shape) == 2, "B is no matrix of floats", weight)
        matrix = array_of(weight)
        position = rank(a) - 1
        for step in path:
            position = moved(step, position)
        need(position == 1, "the columns are not the channels", root)
        scale, shift = scale_and_shift(root, matrix.shape[1])
        kind = tensor.dtype.numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            b = (matrix.astype(np.float64) * scale).astype(kind)
            c = shift.astype(kind)
        finite = all(bool(np.isfinite(array).all()) for array in (b, c))
        need(finite, "a folded number would not be finite", node)
        need_scaled_near(lambda: np.abs(matrix.astype(np.float64)).sum(axis=0), scale, tensor.dtype, node)
        need_digits(b, matrix, tensor.dtype, node)
        return Found((node, *path, root), b, c)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Gemm, and the nodes that move its axes anew."""
        matmul, *path, _ = found.nodes
        a, weight = inputs(matmul, 2)
        dtype = tensor_of(weight).dtype
        b, c = constant(found.b, dtype), constant(found.c, dtype)
        stacked = rank(a) > 2
        node = ir.node("Add", [ir.node("MatMul", [a, b]).outputs[0], c]) if stacked else ir.node("Gemm", [a, b, c])
        for step in path:
            node = ir.Node("", step.op_type, [node.outputs[0], *step.inputs[1:]], list(step.attributes.values()))
        return node

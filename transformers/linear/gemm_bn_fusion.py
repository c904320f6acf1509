"""A BatchNormalization after a Gemm scales the columns of a constant matrix: that can be computed now."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_digits, need_no_larger, need_scaled_near
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    array_of,
    attribute,
    inputs,
    need,
    optional,
    plain_attributes,
    producer,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.batch_normalization import scale_and_shift
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The Gemm and the normalization, the new B and the new C."""

    nodes: tuple[ir.Node, ...]
    b: np.ndarray
    c: np.ndarray


class GemmBnFusion(RewriteRule[Found]):
    """``BatchNormalization(Gemm(a, B, C))`` → ``Gemm(a, B', C')``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("BatchNormalization",)
    opsets = (7, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """Constant B and C; the columns of the product are the channels. Computed in float64, rounded once."""
        gemm = producer(inputs(root, 1)[0], "Gemm")
        _, weight = inputs(gemm, 2)
        tensor = tensor_of(weight)
        need(tensor.dtype in FLOATS and len(tensor.shape) == 2, "B is no matrix of floats", weight)
        plain_attributes(gemm)
        matrix = array_of(weight)
        by_rows = ops.Gemm(gemm).transposes_b
        channels = matrix.shape[0 if by_rows else 1]
        scale, shift = scale_and_shift(root, channels)
        bias = _bias(gemm, channels)
        kind = tensor.dtype.numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            b = (matrix.astype(np.float64) * (scale[:, None] if by_rows else scale)).astype(kind)
            c = (bias * scale + shift).astype(kind)
        finite = all(bool(np.isfinite(array).all()) for array in (b, c))
        need(finite, "a folded number would not be finite", gemm)
        gain = np.abs(matrix.astype(np.float64)).sum(axis=1 if by_rows else 0) * abs(ops.Gemm(gemm).alpha)
        need_scaled_near(lambda: gain, scale, tensor.dtype, gemm)
        need_digits(b, matrix, tensor.dtype, gemm)
        need_no_larger(np.abs(bias), (1.0, c.astype(np.float64), gain), tensor.dtype, gemm)
        return Found((gemm, root), b, c)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Gemm; beta is in the new C."""
        gemm = found.nodes[0]
        a, weight = inputs(gemm, 2)
        dtype = tensor_of(weight).dtype
        return ops.copied(gemm, [a, constant(found.b, dtype), constant(found.c, dtype)], beta=None)


def _bias(gemm: ir.Node, channels: int) -> np.ndarray:
    """What a Gemm adds to each column."""
    c = optional(gemm, 2)
    if c is None:
        return np.zeros(channels)
    content = array_of(c)
    need(content.ndim <= 2, "C has more than two dimensions", c)
    need(content.ndim < 2 or content.shape[0] == 1, "C differs from row to row", c)
    need(content.ndim == 0 or content.shape[-1] in (1, channels), "C does not fit the product", c)
    beta = float(np.float32(attribute(gemm, "beta", 1.0)))
    row: np.ndarray = np.broadcast_to(content.astype(np.float64).reshape(-1), (channels,)) * beta
    return row

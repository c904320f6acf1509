"""A normalization scales and shifts each channel: what comes after it need not do so again."""

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    dtype,
    inputs,
    is_op,
    is_used,
    need,
    need_float,
    only_user,
    optional,
    rank,
)
from ortopt.linear.channels import of_axis
from ortopt.options import Numerics
from ortopt.patterns.affine import LARGEST, SMALLEST
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule


class NormAffineFolding(RewriteRule[Match]):
    """``LayerNormalization(x, s, b) * c + d`` → ``LayerNormalization(x, s * c, b * c + d)``.

    The same holds for a quotient and a difference, for InstanceNormalization, and for the factors of RMSNormalization.
    A zero may get another sign by it.
    """

    after = ("constant_folding", "constant_reassociation")
    roots = ("InstanceNormalization", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
    looks_downstream = True
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A constant that differs along the channels only."""
        x, scale = inputs(root, 2)
        bias = optional(root, 2)
        user = only_user(root.outputs[0], "Add", "Div", "Mul", "Sub")
        a, other = inputs(user, 2)
        if is_op(user, "Add", "Mul") and a is not root.outputs[0]:
            a, other = other, a
        need(a is root.outputs[0], "it divides, or is subtracted", user)
        need(not any(map(is_used, root.outputs[1:])), "its statistics are asked for", root)
        need_float(x)
        need(dtype(scale) == dtype(x), "its scale is of another type", scale)
        s = array_of(scale).astype(np.float64)
        b = np.zeros_like(s) if bias is None else array_of(bias).astype(np.float64)
        need(s.ndim == 1 and s.shape == b.shape, "its scale is no vector", scale)
        c = of_axis(other, s.size, rank(x), _channel_axis(root))
        need(bool(np.isfinite(c).all()), "a number is not finite", other)
        if is_op(user, "Add", "Sub"):
            has_bias = is_op(root, "InstanceNormalization", "LayerNormalization")
            need(has_bias, "the normalization has no bias", root)
            d = c if is_op(user, "Add") else -c
            need(bool((b * d >= 0).all()), "the summands differ in sign: the first may round", other)
            return _scaled(root, user, s, _rounded(b + d, dtype(x), other))
        if is_op(user, "Div"):
            need(bool((c != 0).all()), "it divides by 0", other)
            c = 1 / c
        need(bool(((np.abs(c) >= SMALLEST) & (np.abs(c) <= LARGEST)).all()), "the factor is out of range", other)
        factors = _rounded(s * c, dtype(x), other)
        return _scaled(root, user, factors, None if bias is None else _rounded(b * c, dtype(x), other))


def _channel_axis(root: ir.Node) -> int:
    """The axis along which a normalization has a scale of its own."""
    (x,) = inputs(root, 1)
    if is_op(root, "InstanceNormalization"):
        return 1
    need(ops.OneAxis(root).is_last, "more than the last dimension is normalized", root)
    return rank(x) - 1


def _scaled(root: ir.Node, user: ir.Node, scale: np.ndarray, bias: np.ndarray | None) -> Match:
    """The match of a normalization and what follows it, which another scale and bias of each channel replace."""
    (x,) = inputs(root, 1)

    def build() -> ir.Node:
        biases = [] if bias is None else [constant(bias, dtype(x))]
        return ops.copied(root, [x, constant(scale, dtype(x)), *biases])

    return Match.ending_in(user.outputs[0], (root, user), build)


def _rounded(numbers: np.ndarray, kind: ir.DataType, about: ir.Value) -> np.ndarray:
    """Numbers in an element type, if none of them overflows or vanishes there."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(numbers.astype(kind.numpy()))
    wide = rounded.astype(np.float64)
    need(bool((np.isfinite(wide) & ((wide != 0) | (numbers == 0))).all()), "a number would overflow or vanish", about)
    return rounded

"""An InstanceNormalization scales and shifts each channel: what comes after it need not do so again."""

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    attribute,
    dtype,
    inputs,
    is_op,
    need,
    need_float,
    only_user,
    rank,
)
from ortopt.linear.channels import of_channels
from ortopt.options import Numerics
from ortopt.patterns.affine import LARGEST, SMALLEST
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule


class InstanceNormFusion(RewriteRule[Match]):
    """``InstanceNormalization(x, s, b) * c + d`` → ``InstanceNormalization(x, s * c, b * c + d)``.

    The same holds for a quotient and a difference.
    """

    after = ("constant_folding", "constant_reassociation")
    roots = ("InstanceNormalization",)
    looks_downstream = True
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A constant that differs along the channels only."""
        x, scale, bias = inputs(root, 3)
        user = only_user(root.outputs[0], "Add", "Div", "Mul", "Sub")
        a, other = inputs(user, 2)
        if is_op(user, "Add", "Mul") and a is not root.outputs[0]:
            a, other = other, a
        need(a is root.outputs[0], "it divides, or is subtracted", user)
        need_float(x)
        s, b = array_of(scale).astype(np.float64), array_of(bias).astype(np.float64)
        need(s.ndim == 1 and s.shape == b.shape, "its scale is no vector", scale)
        c = of_channels(other, s.size, rank(x))
        if is_op(user, "Add", "Sub"):
            d = c if is_op(user, "Add") else -c
            need(bool((b * d >= 0).all()), "the summands differ in sign: the first may round", other)
            return _scaled(root, user, s, _rounded(b + d, dtype(x), other))
        if is_op(user, "Div"):
            need(bool((c != 0).all()), "it divides by 0", other)
            c = 1 / c
        need(bool(((np.abs(c) >= SMALLEST) & (np.abs(c) <= LARGEST)).all()), "the factor is out of range", other)
        return _scaled(root, user, _rounded(s * c, dtype(x), other), _rounded(b * c, dtype(x), other))


def _scaled(root: ir.Node, user: ir.Node, scale: np.ndarray, bias: np.ndarray) -> Match:
    """The match of a normalization and what follows it, which another scale and bias of each channel replace."""
    (x,) = inputs(root, 1)
    attributes = {"epsilon": attribute(root, "epsilon", 1e-5)}

    def build() -> ir.Node:
        return ir.node("InstanceNormalization", [x, constant(scale, dtype(x)), constant(bias, dtype(x))], attributes)

    return Match.ending_in(user.outputs[0], (root, user), build)


def _rounded(numbers: np.ndarray, kind: ir.DataType, about: ir.Value) -> np.ndarray:
    """Numbers in an element type, if none of them overflows or vanishes there."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(numbers.astype(kind.numpy()))
    wide = rounded.astype(np.float64)
    need(bool((np.isfinite(wide) & ((wide != 0) | (numbers == 0))).all()), "a number would overflow or vanish", about)
    return rounded

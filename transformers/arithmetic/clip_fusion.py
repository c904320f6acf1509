"""A minimum of a maximum is a Clip, which other ops can take in."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import (
    DOUBLE,
    dtype,
    inputs,
    is_constant,
    is_op,
    keeps_rank,
    need,
    need_float,
    operand_constant,
    operand_from,
    opset,
    scalar,
)
from ortopt.options import Numerics
from ortopt.patterns.clamp import zeros_have_no_sign
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM


class ClipFusion(RewriteRule[Match]):
    """``Min(Max(x, a), b)`` → ``Clip(x, a, b)``; so for ``Max(Min(x, b), a)`` and ``Min(Relu(x), b)``.

    A NaN stays a NaN in all of these forms.
    """

    after = ("constant_folding", "relu_fusion")
    roots = ("Max", "Min")
    opsets = (8, NEWEST_OPSET)  # before, Max and Min did not broadcast
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Two bounds, each one finite number, the lower one not above the other."""
        other = "Max" if is_op(root, "Min") else "Min"
        inner, outer = operand_from(root, *((other, "Relu") if other == "Max" else (other,)))
        numbers = [_number(outer, inner.outputs[0])]
        if is_op(inner, "Relu"):
            (x,) = inputs(inner, 1)
            numbers.append(0.0)
        else:
            bound, x = operand_constant(inner)
            numbers.append(_number(bound, x))
        low, high = numbers if other == "Min" else numbers[::-1]
        need_float(x)
        need(dtype(x) != DOUBLE or opset(root) >= 12, "before opset 12, a Clip is of single precision", x)
        need(not is_constant(x), "all operands are constants", x)
        need(low <= high, "the bounds are out of order", root)
        signed = 0.0 not in (low, high) or is_op(inner, "Relu") or zeros_have_no_sign(x)
        need(signed, "a Clip would let -0.0 through", x)

        def build() -> ir.Node:
            if opset(root) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
                return ir.node("Clip", [x], {"min": low, "max": high})
            bounds = [constant(np.asarray(number, dtype(x).numpy()), dtype(x)) for number in (low, high)]
            return ir.node("Clip", [x, *bounds])

        return Match((inner, root), build)


def _number(bound: ir.Value, x: ir.Value) -> float:
    number = scalar(bound)
    need(math.isfinite(number), "a bound is not finite", bound)
    need(keeps_rank(bound, x), "the constant would raise the rank", bound)
    return number

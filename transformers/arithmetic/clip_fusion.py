"""Limits of a value, one behind the other, are a Clip, which other ops can take in."""

from __future__ import annotations

import math
from typing import NamedTuple

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
    opset,
    producer,
    scalar,
)
from ortopt.options import Numerics
from ortopt.patterns.clamp import stated_bounds, zeros_have_no_sign
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM

_LIMITS = ("Clip", "Max", "Min", "Relu")


class ClipFusion(RewriteRule[Match]):
    """``Min(Max(x, a), b)`` → ``Clip(x, a, b)``; so for any two of Clip, Relu, and Max or Min with one number.

    A NaN stays a NaN in all of these forms.
    """

    after = ("constant_folding", "relu_fusion")
    roots = _LIMITS
    opsets = (8, NEWEST_OPSET)  # before, Max and Min did not broadcast
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Both bounds are finite in the end, and what the one op leaves is in part what the other leaves."""
        then = _limits(root)
        inner = producer(then.x, *_LIMITS)
        first = _limits(inner)
        x = first.x
        need_float(x)
        need(dtype(x) != DOUBLE or opset(root) >= 12, "before opset 12, a Clip is of single precision", x)
        need(not is_constant(x), "all operands are constants", x)
        need(first.low <= then.high and then.low <= first.high, "the bounds are out of order", root)
        low, high = max(first.low, then.low), min(first.high, then.high)
        need(math.isfinite(low) and math.isfinite(high), "a bound is not finite", root)
        need(not (first.signs or then.signs) or zeros_have_no_sign(x), "a Clip would let -0.0 through", x)

        def build() -> ir.Node:
            if opset(root) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
                return ir.node("Clip", [x], {"min": low, "max": high})
            bounds = [constant(np.asarray(number, dtype(x).numpy()), dtype(x)) for number in (low, high)]
            return ir.node("Clip", [x, *bounds])

        return Match((inner, root), build)


class _Limits(NamedTuple):
    """What an op does to x.

    Attributes:
        x: Its operand.
        low: The lower bound; infinite where it has none.
        high: The upper one.
        signs: Whether it may make 0.0 of -0.0.
    """

    x: ir.Value
    low: float
    high: float
    signs: bool


def _limits(node: ir.Node) -> _Limits:
    if is_op(node, "Clip", "Relu"):
        low, high = (0.0, math.inf) if is_op(node, "Relu") else stated_bounds(node)
        need(low <= high, "the bounds are out of order", node)
        return _Limits(inputs(node, 1)[0], low, high, signs=False)
    bound, x = operand_constant(node)
    number = scalar(bound)
    need(math.isfinite(number), "a bound is not finite", bound)
    need(keeps_rank(bound, x), "the constant would raise the rank", bound)
    low, high = (number, math.inf) if is_op(node, "Max") else (-math.inf, number)
    return _Limits(x, low, high, signs=number == 0)

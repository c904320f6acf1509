"""What keeps x above a threshold and is 0 elsewhere is one kernel."""

import onnx_ir as ir

from ortopt.graph.match import (
    inputs,
    is_constant,
    is_op,
    is_scalar,
    keeps_rank,
    need,
    need_float,
    producer,
    scalar,
)
from ortopt.options import TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule


class ThresholdedReluFusion(RewriteRule[Match]):
    """``Where(x > a, x, 0)`` → ``ThresholdedRelu<alpha = a>(x)``; a NaN is 0 in both."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding", "not_where_fusion")
    roots = ("Where",)
    opsets = (10, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """The comparison is strict: at the threshold itself the result is 0."""
        condition, x, zero = inputs(root, 3)
        comparison = producer(condition, "Greater", "Less")
        left, right = inputs(comparison, 2)
        if is_op(comparison, "Less"):
            left, right = right, left
        need(left is x and is_constant(right), "the condition is not that x is above a number", condition)
        threshold = scalar(right)
        need(is_scalar(zero, 0.0), "it is not 0 elsewhere", zero)
        need(keeps_rank(right, x) and keeps_rank(zero, x), "the constant would raise the rank", zero)
        need_float(x)
        need(abs(threshold) < float("inf"), "the threshold is not finite", right)
        need_single(x)
        return Match((comparison, root), lambda: ir.node("ThresholdedRelu", [x], {"alpha": threshold}))

"""What keeps the larger of x and 0 is a Relu, which other ops can take in."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import (
    inputs,
    is_op,
    is_scalar,
    keeps_rank,
    need,
    need_float,
    operand_scalar,
    producer,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.clamp import zeros_have_no_sign
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule


class ReluFusion(RewriteRule[Forwarded]):
    """``Max(x, 0)`` → ``Relu(x)``, and ``Where(x < 0, 0, x)``.

    ``Where(x > 0, x, 0)`` stays, because it turns a NaN into 0. ``Clip(x, 0)`` stays, because it turns an infinity into
    a number.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding", "not_where_fusion")
    roots = ("Max", "Where")
    opsets = (8, NEWEST_OPSET)  # before, Max did not broadcast
    numerics = Numerics.REORDERED  # the sign of a zero

    def match(self, root: ir.Node) -> Forwarded:
        """A zero that is a constant, and one other operand."""
        if is_op(root, "Max"):
            need(len(root.inputs) == 2, "Max has not two operands", root)
            x = operand_scalar(root, 0.0)
            need(zeros_have_no_sign(x), "a Relu would let -0.0 through", x)
            nodes: tuple[ir.Node, ...] = (root,)
        else:
            condition, zero, x = inputs(root, 3)
            comparison = producer(condition, "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
            left, right = inputs(comparison, 2)
            if is_op(comparison, "Greater", "GreaterOrEqual"):
                left, right = right, left
            need(left is x and is_scalar(right, 0.0), "the condition is not that x is negative", condition)
            need(is_scalar(zero, 0.0), "what stands for negative numbers is not 0", zero)
            need(keeps_rank(zero, x) and keeps_rank(right, x), "the constant would raise the rank", zero)
            need(is_op(comparison, "Less", "Greater") or zeros_have_no_sign(x), "a Relu would let -0.0 through", x)
            nodes = (comparison, root)
        need_float(x)
        return Forwarded(nodes, x)

    def rewrite(self, found: Forwarded) -> ir.Node:
        """Build the Relu."""
        return ir.node("Relu", [found.value])

"""What keeps x above a number and is the number, or 0, below: Relu and ThresholdedRelu, and a Clip behind a Relu."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    dtype,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    keeps_rank,
    need,
    need_float,
    operand_scalar,
    opset,
    optional,
    producer,
    scalar,
    tensor_of,
)
from ortopt.options import Numerics
from ortopt.patterns.affine import need_single
from ortopt.patterns.clamp import stated_bounds, zeros_have_no_sign
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM


class ReluFusion(RewriteRule[Match]):
    """``Max(x, 0)`` → ``Relu(x)``, and ``Where(x < 0, 0, x)``.

    ``Where(x > 0, x, 0)`` stays, because it turns a NaN into 0. ``Clip(x, 0)`` stays, because it turns an infinity into
    a number.
    """

    after = ("constant_folding", "not_where_fusion")
    roots = ("Max", "Where")
    opsets = (8, NEWEST_OPSET)  # before, Max did not broadcast
    numerics = Numerics.REORDERED  # the sign of a zero

    def match(self, root: ir.Node) -> Match:
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
        return Match(nodes, lambda: ir.node("Relu", [x]))


class ThresholdedReluFusion(RewriteRule[Match]):
    """``Where(x > a, x, 0)`` → ``ThresholdedRelu<alpha = a>(x)``; a NaN is 0 in both."""

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


class ReluClipFusion(RewriteRule[Match]):
    """``Clip(Relu(x), min, max)`` → ``Clip(x, larger of min and 0, max)``, in every type."""

    roots = ("Clip",)
    opsets = (6, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """Constant bounds; a max below 0 or below min would make a Clip that versions read differently."""
        (middle,) = inputs(root, 1)
        relu = producer(middle, "Relu")
        low, high = stated_bounds(root)
        need(high >= 0, "max is below 0", root)
        need(low <= high, "min is above max", root)
        return Match((relu, root), lambda: _clip(inputs(relu, 1)[0], root, low))


def _clip(x: ir.Value, clip: ir.Node, low: float) -> ir.Node:
    """A Clip of x between 0, or its lower bound if that is larger, and its upper one."""
    if opset(clip) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
        return ops.copied(clip, [x], min=0.0 if np.signbit(low) else float(low))
    minimum, maximum = optional(clip, 1), optional(clip, 2)
    if minimum is None or np.signbit(low):  # -0.0 too: the Relu gives 0.0
        minimum = _zero(clip, minimum)
    return ir.Node("", "Clip", [x, minimum, *([] if maximum is None else [maximum])])


def _zero(clip: ir.Node, minimum: ir.Value | None) -> ir.Value:
    if minimum is not None:
        tensor = tensor_of(minimum)
        return constant(np.zeros(tensor.shape.numpy(), tensor.dtype.numpy()), tensor.dtype)
    kind = dtype(inputs(clip, 1)[0])
    return constant(np.zeros((), kind.numpy()), kind)

"""A Softmax takes the largest of a row off by itself; models that do it before, against overflow, do it twice.

Models that spell all of it out become a Softmax first.
And some functions change nothing when they are applied again, and some are their own inverses.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import dims, inputs, is_op, need, need_float, operand_constant, producer, scalar
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded, Match, RewriteRule
from ortopt.semantics.op_traits import IDEMPOTENT, INVOLUTIONS


class SoftmaxFusion(RewriteRule[Match]):
    """``Exp(x) / ReduceSum(Exp(x))`` → ``Softmax(x)``; ``x - Log(ReduceSum(Exp(x)))`` → ``LogSoftmax(x)``, as in JAX.

    What x is must have the largest of its row taken off: else the original may overflow where the op does not.
    """

    after = ("div_mul_fusion", "reduce_reshape_fusion")
    roots = ("Div", "Sub")
    needs = ("Exp",)
    opsets = (13, NEWEST_OPSET)  # before, all axes from the given one on are normalized together
    lookback = 6
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Exponentials, and their sums over the last axis, or the logarithms of these."""
        left, right = inputs(root, 2)
        logarithm = producer(right, "Log") if is_op(root, "Sub") else None
        sum_ = producer(right if logarithm is None else inputs(logarithm, 1)[0], "ReduceSum")
        (terms,) = inputs(sum_, 1)
        exponential = producer(terms, "Exp")
        (x,) = inputs(exponential, 1)
        need(left is (terms if logarithm is None else x), "other sums are taken", root)
        need_float(x)
        last = len(dims(x)) - 1
        need(ops.Reduce(sum_).keeps_axes and ops.Reduce(sum_).axes == (last,), "it sums up no rows", sum_)
        scores, largest = inputs(producer(x, "Sub"), 2)
        _check_largest(largest, scores, last)
        nodes = tuple(node for node in (exponential, sum_, logarithm, root) if node is not None)
        op = "Softmax" if logarithm is None else "LogSoftmax"
        return Match(nodes, lambda: ir.node(op, [x], {"axis": -1}))


class SoftmaxShiftElimination(RewriteRule[Match]):
    """``Softmax(x - ReduceMax(x))`` → ``Softmax(x)``; ``Softmax((z / c - ReduceMax(z / c)) · c)`` → ``Softmax(z)``.

    The factor must be above 1, so that nothing overflows that did not before. So for LogSoftmax.
    """

    after = ("constant_folding",)
    roots = ("LogSoftmax", "Softmax")
    opsets = (13, NEWEST_OPSET)  # before, all axes from the given one on are normalized together
    lookback = 4
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A difference between scores and their largest, which may be scaled back."""
        (shifted,) = inputs(root, 1)
        need_float(shifted)
        scaling = shifted.producer()
        if not is_op(scaling, "Mul"):
            difference = _difference(root, shifted)
            return _without_shift((difference, root), inputs(difference, 2)[0])
        number, shifted = operand_constant(scaling)
        difference = _difference(root, shifted)
        scores = _unscaled(inputs(difference, 2)[0], _factor(number, shifted))
        return _without_shift((difference, scaling, root), scores)


def _without_shift(nodes: tuple[ir.Node, ...], scores: ir.Value) -> Match:
    root = nodes[-1]
    return Match(nodes, lambda: ir.node(root.op_type, [scores], {"axis": ops.Softmax(root).stated_axis}))


def _difference(root: ir.Node, shifted: ir.Value) -> ir.Node:
    """The Sub that takes the largest off."""
    difference = producer(shifted, "Sub")
    scores, largest = inputs(difference, 2)
    _check_largest(largest, scores, ops.Softmax(root).axis)
    return difference


def _factor(number: ir.Value, scaled: ir.Value) -> float:
    """What differences are multiplied by.

    Raises:
        Refusal: If it is no finite number above 1, or would raise the rank.
    """
    factor = float(scalar(number))
    need(math.isfinite(factor) and factor > 1, "the differences are scaled down", number)
    need(len(dims(number)) <= len(dims(scaled)), "the factor would raise the rank", number)
    return factor


def _unscaled(scores: ir.Value, factor: float) -> ir.Value:
    """What was divided by a factor.

    Raises:
        Refusal: If nothing was, or by something else.
    """
    dividend, divisor = inputs(producer(scores, "Div"), 2)
    need(float(scalar(divisor)) == factor, "the scores were not divided by what the differences are scaled by", divisor)
    need(len(dims(divisor)) <= len(dims(dividend)), "the divisor would raise the rank", divisor)
    return dividend


def _check_largest(largest: ir.Value, scores: ir.Value, place: int) -> None:
    """Refuse what is not the largest of each row, in a dimension of 1."""
    maximum = producer(largest, "ReduceMax")
    need(maximum.inputs[0] is scores, "the largest of something else is taken off", maximum)
    need(ops.Reduce(maximum).keeps_axes, "the rows' dimension is gone", maximum)
    need(ops.Reduce(maximum).axes == (place,), "it is not the largest of a row", maximum)


class RepeatedActivationElimination(Elimination):
    """``Relu(Relu(x))`` → ``Relu(x)``, so for Abs, Ceil, Floor, Round, Sign; ``Neg(Neg(x))`` → ``x``, so for Not.

    The result is exact for every input: integers wrap around in the same way, and NaN and -0.0 stay what they are.
    """

    roots = (*sorted(IDEMPOTENT), *sorted(INVOLUTIONS))

    def match(self, root: ir.Node) -> Forwarded:
        """The same op before; the value between the two may have other users."""
        (middle,) = inputs(root, 1)
        first = producer(middle, root.op_type)
        (x,) = inputs(first, 1)
        need(middle.dtype is not None, "the type is unknown", middle)
        return Forwarded((root,), middle if root.op_type in IDEMPOTENT else x)

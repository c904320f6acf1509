"""Exponential linear units: ``x`` where it is positive, ``a · (eˣ - 1)`` elsewhere.

Spelled out, they become one op at level 2 (and a scaled one at level 1). The CPU's kernels for the ops take few
elements at a time, and those for Exp and arithmetic many: level 3 takes them apart where that is faster.
"""

from __future__ import annotations

import math

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    attribute,
    choose,
    dtype,
    inputs,
    is_op,
    need,
    need_float,
    need_float32,
    need_known,
    only_user,
    producer,
)
from ortopt.options import MEASURED_TARGETS, Numerics, TransformerLevel
from ortopt.patterns.affine import LARGEST, SMALLEST, affine_forms, is_near, need_single, scaled_below
from ortopt.patterns.clamp import zeros_have_no_sign
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.transformers.activation._spelled import beside_zero, check_taken_apart, chosen_above_zero, other_operand

MAXIMUM, SUM = (Form("", "Exp", variant) for variant in ("in place of Elu", "in place of one of two sides"))

NOT_ELU = "it is not x where x is positive, and a · (exp(x) - 1) elsewhere"

ROUNDING = 1e-6
"""By how much a product of two numbers of single precision, each the other's reciprocal, may be above 1."""

LARGEST_PARAMETER = 2.0**24
"""The largest factor, and one over the least."""


class Elu(Struct, frozen=True):
    """``scale · x`` where x is positive, ``low · (exp(rate · x) - 1)`` elsewhere.

    Attributes:
        nodes: The nodes that compute it.
        x: The value that it is computed from.
        y: The result.
        low: What it falls to.
        rate: What x is multiplied with in the exponent: 1, or 1 / low for a Celu.
        scale: What x is multiplied with where it is positive.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value
    low: float
    rate: float
    scale: float = 1.0

    @property
    def is_maximum(self) -> bool:
        """Whether the exponential lies above x where x is negative."""
        return self.scale == 1 and self.low * self.rate <= 1 + ROUNDING


class EluFusion(RewriteRule[Match]):
    """``Where(x > 0, x, a · (Exp(x) - 1))`` → ``Elu<alpha = a>(x)``; with ``Exp(x / a)`` it is a Celu."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "constant_reassociation", "not_where_fusion", "relu_fusion")
    roots = ("Relu", "Where")
    needs = ("Exp",)
    looks_downstream = True
    opsets = (12, NEWEST_OPSET)  # from there on there is a Celu
    lookback = 5
    fuses = (("", "Celu"), ("", "Elu"))
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Parameters that the op can hold."""
        elu = _spelled(root)
        need_single(elu.x)
        need(elu.rate == 1 or dtype(elu.x) == FLOAT, "a Celu is of single precision only", elu.x)
        op = "Elu" if elu.rate == 1 else "Celu"
        return Match.ending_in(elu.y, elu.nodes, lambda: ir.node(op, [elu.x], {"alpha": elu.low}))


class SeluFusion(RewriteRule[Match]):
    """``g · Elu<alpha = a>(x)`` → ``Selu<alpha = a, gamma = g>(x)``."""

    after = ("constant_folding", "constant_reassociation", "elu_fusion")
    roots = ("Elu",)
    looks_downstream = True
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """One number, by which an Elu's result is multiplied or divided."""
        scaled = need_known(scaled_below(root.outputs[0]), "it is not multiplied by one number", root)
        (x,) = inputs(root, 1)
        need_float(x)
        need(SMALLEST <= scaled.factor <= LARGEST, "the factor is out of range", root)
        need_single(x)
        attributes = {"alpha": attribute(root, "alpha", 1.0), "gamma": scaled.factor}
        return Match.ending_in(scaled.value, (root, *scaled.nodes), lambda: ir.node("Selu", [x], attributes))


class EluDecomposition(RewriteRule[Match]):
    """``Elu(x)`` → ``Max(x, a · (Exp(Min(x, 0)) - 1))``, Celu likewise; Selu → the sum of its two sides.

    The tangent at 0 is x, and the exponential is above its tangent: so the maximum is right for a up to 1. With a
    larger one, Relu and the exponential are added up. For few elements, more kernels cost more than they save.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Celu", "Elu", "Selu", "Where")
    needs = ("Celu", "Elu", "Exp", "Selu")
    opsets = (8, NEWEST_OPSET)  # before, Min and Max did not broadcast
    lookback = 5
    targets = MEASURED_TARGETS
    weighs = (MAXIMUM, SUM)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """One of them, of enough elements and with positive parameters."""
        elu = _spelled(root) if is_op(root, "Where") else _one_op(root)
        need_float32(elu.x)
        keeps_signs = is_op(root, "Selu") or zeros_have_no_sign(elu.x)  # a Selu of -0.0 is 0.0
        need(keeps_signs, "a zero would have the other sign", elu.x)
        moderate = all(1 / LARGEST_PARAMETER <= each <= LARGEST_PARAMETER for each in (elu.scale, elu.low, elu.rate))
        need(moderate, "a parameter is not positive, or far from 1", root)
        check_taken_apart(root, MAXIMUM if elu.is_maximum else SUM, elu.x)
        return Match.ending_in(elu.y, elu.nodes, lambda: _arithmetic(elu))


def _arithmetic(elu: Elu) -> ir.Node:
    """The maximum, or the sum of both sides."""
    negative = ir.node("Min", [elu.x, constant(0.0, FLOAT)]).outputs[0]
    power = ir.node("Exp", [_scaled(negative, elu.rate)]).outputs[0]
    lower = _scaled(ir.node("Sub", [power, constant(1.0, FLOAT)]).outputs[0], elu.low)
    if elu.is_maximum:
        return ir.node("Max", [elu.x, lower])
    return ir.node("Add", [_scaled(ir.node("Relu", [elu.x]).outputs[0], elu.scale), lower])


def _scaled(value: ir.Value, factor: float) -> ir.Value:
    return value if factor == 1 else ir.node("Mul", [value, constant(factor, FLOAT)]).outputs[0]


def _one_op(root: ir.Node) -> Elu:
    """What an Elu, Celu or Selu computes."""
    (x,) = inputs(root, 1)
    given = ops.Activation(root).parameters
    alpha, gamma = given["alpha"], given.get("gamma", 1.0)
    rate = 1 / alpha if root.op_type == "Celu" and alpha > 0 else 1.0
    return Elu((root,), x, root.outputs[0], gamma * alpha, rate, gamma)


def _spelled(root: ir.Node) -> Elu:
    """The exponential linear unit that a Where or a Relu is of.

    Raises:
        Refusal: If it is none.
    """
    elu = _chosen(root) if is_op(root, "Where") else _of_two_halves(root)
    need_float(elu.x)
    need(elu.rate == 1 or is_near(elu.rate * elu.low, 1.0, dtype(elu.x)), NOT_ELU, root)
    need(zeros_have_no_sign(elu.x), "a zero would have the other sign", elu.x)
    return elu


def _chosen(root: ir.Node) -> Elu:
    """``Where(x > 0, x, a · (Exp(x) - 1))``, the comparison in any form."""
    comparison, x, rest = chosen_above_zero(root, NOT_ELU)
    nodes, low, rate = _falling(rest, x)
    return Elu((*nodes, comparison, root), x, root.outputs[0], low, rate)


def _of_two_halves(relu: ir.Node) -> Elu:
    """``Relu(x) + Min(a · (Exp(x) - 1), 0)``: an infinity of Exp does not come through."""
    total = only_user(relu.outputs[0], "Add")
    (x,) = inputs(relu, 1)
    least = producer(other_operand(total, relu.outputs[0]), "Min")
    nodes, low, rate = _falling(beside_zero(least, NOT_ELU), x)
    need(low > 0, "what it falls to is not negative", total)
    return Elu((*nodes, relu, least, total), x, total.outputs[0], low, rate)


def _falling(value: ir.Value, x: ir.Value) -> tuple[tuple[ir.Node, ...], float, float]:
    """``low · (Exp(rate · x) - 1)``: its nodes, low and rate."""
    readings = [
        ((*outer.nodes, power, *inner.nodes), outer.factor, inner.factor)
        for outer in affine_forms(value)
        if math.isclose(outer.shift, -outer.factor, rel_tol=1e-7)
        for power in [outer.x.producer()]
        if is_op(power, "Exp")
        for inner in affine_forms(inputs(power, 1)[0])
        if inner.x is x and inner.shift == 0 and inner.factor > 0
    ]
    if not readings:
        raise Refusal(NOT_ELU, value)
    return choose(readings)

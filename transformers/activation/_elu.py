"""Exponential linear units, spelled out: x where it is positive, ``a · (eˣ - 1)`` elsewhere."""

from __future__ import annotations

import math

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import (
    Refusal,
    choose,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    keeps_rank,
    need,
    need_float,
    only_user,
    producer,
)
from ortopt.patterns.affine import affine_forms, is_near
from ortopt.patterns.clamp import zeros_have_no_sign
from ortopt.transformers.activation._threshold import threshold

NOT_ELU = "it is not x where x is positive, and a · (exp(x) - 1) elsewhere"


class Elu(Struct, frozen=True):
    """``x`` where it is positive, ``alpha · (exp(rate · x) - 1)`` elsewhere.

    Attributes:
        nodes: The nodes that compute it.
        x: The value that it is computed from.
        alpha: What it falls to.
        rate: What x is multiplied with in the exponent: 1, or 1 / alpha for a Celu.
        y: The result.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    alpha: float
    rate: float
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which may stand below the root."""
        return (self.y,)


def elu(root: ir.Node) -> Elu:
    """The exponential linear unit that a node is of.

    Args:
        root: A Where, or a Relu.

    Raises:
        Refusal: If it is none.
    """
    found = _chosen(root) if is_op(root, "Where") else _of_two_halves(root)
    need_float(found.x)
    kind = dtype(found.x)
    need(found.rate == 1 or is_near(found.rate * found.alpha, 1.0, kind), NOT_ELU, root)
    need(zeros_have_no_sign(found.x), "a zero would have the other sign", found.x)
    return found


def _chosen(root: ir.Node) -> Elu:
    """``Where(x > 0, x, a · (Exp(x) - 1))``, the comparison in any form."""
    comparison, left, right, x, rest = threshold(root)
    need(left is x and is_scalar(right, 0.0) and keeps_rank(right, x), NOT_ELU, comparison)
    nodes, alpha, rate = _falling(rest, x)
    return Elu((*nodes, comparison, root), x, alpha, rate, root.outputs[0])


def _of_two_halves(relu: ir.Node) -> Elu:
    """``Relu(x) + Min(a · (Exp(x) - 1), 0)``: an infinity of Exp does not come through."""
    total = only_user(relu.outputs[0], "Add")
    a, b = inputs(total, 2)
    (x,) = inputs(relu, 1)
    least = producer(b if a is relu.outputs[0] else a, "Min")
    need(len(least.inputs) == 2, NOT_ELU, least)
    a, b = inputs(least, 2)
    zero, rest = (a, b) if is_constant(a) else (b, a)
    need(is_scalar(zero, 0.0) and keeps_rank(zero, rest), NOT_ELU, least)
    nodes, alpha, rate = _falling(rest, x)
    need(alpha > 0, "what it falls to is not negative", total)
    return Elu((*nodes, relu, least, total), x, alpha, rate, total.outputs[0])


def _falling(value: ir.Value, x: ir.Value) -> tuple[tuple[ir.Node, ...], float, float]:
    """``alpha · (Exp(rate · x) - 1)``: its nodes, alpha and rate."""
    readings = [
        ((*outer.nodes, power, *inner.nodes), outer.factor, inner.factor)
        for outer in affine_forms(value)
        if math.isclose(outer.shift, -outer.factor, rel_tol=1e-7)
        for power in [outer.x.producer()]
        if power is not None and is_op(power, "Exp")
        for inner in affine_forms(inputs(power, 1)[0])
        if inner.x is x and inner.shift == 0 and inner.factor > 0
    ]
    if not readings:
        raise Refusal(NOT_ELU, value)
    return choose(readings)


__all__ = ["Elu", "elu"]

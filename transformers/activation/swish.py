"""Swish, a sigmoid of x, scaled, times x: SiLU where the scale is 1, which some spell out, and QuickGELU.

The standard has one op of Swish; ONNX Runtime takes that apart, and is faster with its own QuickGelu.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import (
    Refusal,
    choose,
    inputs,
    is_constant,
    is_op,
    keeps_rank,
    need,
    need_float,
    only_user,
    operand_scalar,
    producer,
    scalar,
    users,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.activation._spelled import other_operand


class SigmoidFusion(RewriteRule[Match]):
    """``x / (1 + Exp(-x))`` → ``x · Sigmoid(x)``, as JAX has it.

    ONNX Runtime's kernel of Sigmoid gives 0 below -18. In a product with x that is rounding. By itself it is none, as a
    logarithm may read it, or a quotient: so `1 / (1 + Exp(-x))` stays.
    """

    after = ("div_mul_fusion",)
    roots = ("Div",)
    needs = ("Exp",)
    lookback = 4
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A quotient of x by the sum of 1 and the exponential of what is negative."""
        x, divisor = inputs(root, 2)
        sum_ = producer(divisor, "Add")
        exponential = producer(operand_scalar(sum_, 1.0), "Exp")
        (negative,) = inputs(exponential, 1)
        negation = producer(negative, "Neg")
        need(inputs(negation, 1)[0] is x, "something else is divided", root)
        need_float(x)
        for user in users(root.outputs[0]):
            divides = is_op(user, "Div") and user.inputs[1] is root.outputs[0]
            need(not divides and not is_op(user, "Log", "Pow", "Reciprocal"), "it is no summand or factor", user)
        return Match((negation, exponential, sum_, root), lambda: _product(x))


def _product(x: ir.Value) -> ir.Node:
    return ir.node("Mul", [x, ir.node("Sigmoid", [x]).outputs[0]])


class _SwishFusion(RewriteRule[Match]):
    levels = (TransformerLevel.LEVEL2,)
    roots = ("Sigmoid",)
    looks_downstream = True
    numerics = Numerics.REORDERED


class QuickGeluFusion(_SwishFusion):
    """``x · Sigmoid(alpha · x)`` → ``com.microsoft.QuickGelu<alpha = alpha>(x)``."""

    produces = ((MICROSOFT, "QuickGelu"),)

    def match(self, root: ir.Node) -> Match:
        """The product below the sigmoid, of what is scaled above it."""
        return _swish(root, "QuickGelu", MICROSOFT)


class SwishFusion(_SwishFusion):
    """``x · Sigmoid(alpha · x)`` → ``Swish<alpha = alpha>(x)``, for runtimes without QuickGelu."""

    after = ("opset_conversion", "quick_gelu_fusion")
    opsets = (24, NEWEST_OPSET)
    fuses = (("", "Swish"),)

    def match(self, root: ir.Node) -> Match:
        """As for QuickGelu, in single precision."""
        found = _swish(root, "Swish")
        need_single(inputs(root, 1)[0])
        return found


def _swish(root: ir.Node, op: str, domain: str = "") -> Match:
    """The Swish around a Sigmoid as one op: the product below it, of what is scaled above it.

    Raises:
        Refusal: If it is none.
    """
    (argument,) = inputs(root, 1)
    product = only_user(root.outputs[0], "Mul")
    x = other_operand(product, root.outputs[0])
    need(x is not root.outputs[0], "the product is a square", product)
    nodes: tuple[ir.Node, ...] = (root, product)
    alpha = 1.0
    if argument is not x:
        alpha, scaling = _scale(argument, x)
        nodes = (scaling, *nodes)
    attributes = {"alpha": alpha}
    return Match.ending_in(product.outputs[0], nodes, lambda: ir.node(op, [x], attributes, domain=domain))


def _scale(argument: ir.Value, x: ir.Value) -> tuple[float, ir.Node]:
    """What x is scaled with, and the node that does so."""
    scaling = argument.producer()
    if not is_op(scaling, "Mul"):
        raise Refusal("the argument of Sigmoid is not alpha · x", argument)
    a, b = inputs(scaling, 2)
    pairs = [pair for pair in ((a, b), (b, a)) if pair[0] is x and is_constant(pair[1])]
    need(bool(pairs), "the argument of Sigmoid is not alpha · x", argument)
    _, number = choose(pairs)
    need(keeps_rank(number, x), "the constant would raise the rank", number)
    return scalar(number), scaling

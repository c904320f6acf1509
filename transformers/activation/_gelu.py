"""The parts that the forms of GELU share: ``x · ½ · (1 + f)``, and polynomials of x inside f."""

from __future__ import annotations

import math
from functools import partial

import onnx_ir as ir

from ortopt.analysis.kernels import CPU
from ortopt.framework import placement
from ortopt.graph import scope
from ortopt.graph.match import (
    FLOAT16,
    Refusal,
    choose,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    keeps_rank,
    need,
    only_user,
    operand_scalar,
    producer,
    scalar,
)
from ortopt.graph.walk import Question, walk
from ortopt.options import Target

MAX_FACTORS = 3
MAX_TERMS = 12
Polynomial = dict[int, float]


def activation(root: ir.Node, x: ir.Value, op: str, domain: str = "", **attributes: str) -> ir.Value:
    """An activation of x. On the CPU, which has no kernel of halves, they become floats for it.

    Args:
        root: A node of the pattern, which says where it runs.
        x: The operand.
        op: The op.
        domain: Its domain.
        attributes: Its attributes.
    """
    options = scope.of(scope.graph_of(root)).options
    converted = options.float16 or options.bfloat16 or options.target is not Target.ORT
    if x.dtype != FLOAT16 or domain == "" or converted or placement.provider_of(root, options.providers) != CPU:
        return ir.node(op, [x], attributes, domain=domain).outputs[0]
    floats = ir.node("Cast", [x], {"to": ir.DataType.FLOAT}).outputs[0]
    result = ir.node(op, [floats], attributes, domain=domain).outputs[0]
    return ir.node("Cast", [result], {"to": ir.DataType.FLOAT16}).outputs[0]


def half_of_one_plus(root: ir.Node, x: ir.Value | None, nodes: list[ir.Node]) -> tuple[ir.Value, ir.Value]:
    """``x · ½ · (1 + f)`` below a node that gives f; ½ may be anywhere in the product.

    Args:
        root: The node that gives f.
        x: The argument of f; None if it is not known yet.
        nodes: The nodes of the pattern are added to it.

    Returns:
        x and the product.

    Raises:
        Refusal: If it is not that.
    """
    total, share = _one_plus(root, nodes)
    return _product(total, share, x, nodes)


def _one_plus(root: ir.Node, nodes: list[ir.Node]) -> tuple[ir.Value, float]:
    """The result of ``1 + f`` and 1, or of ``½ + ½·f`` and ½."""
    user = only_user(root.outputs[0], "Add", "Mul", "Div")
    share = 1.0
    if not is_op(user, "Add"):
        share, _ = _scaled(user)
        nodes.append(user)
        user = only_user(user.outputs[0], "Add")
    operand_scalar(user, share)
    nodes.append(user)
    return user.outputs[0], share


def _product(value: ir.Value, share: float, x: ir.Value | None, nodes: list[ir.Node]) -> tuple[ir.Value, ir.Value]:
    """x, and the product of it, of a value with the factor `share`, and of constants that make the factor ½ in all."""
    has_x = False
    for _ in range(MAX_FACTORS):
        need(not has_x or is_used_once(value), "the factors do not make x · ½", value)
        user = only_user(value, "Mul", "Div")
        nodes.append(user)
        other = _other_operand(user, value)
        if is_constant(other):
            number, _ = _scaled(user)
            share *= number
        else:
            need(is_op(user, "Mul") and not has_x, "the product has another factor", other)
            x, number = _scaled_x(other, x, nodes)
            share *= number
            has_x = True
        value = user.outputs[0]
        if has_x and share == 0.5 and x is not None:
            return x, value
    raise Refusal("the factors do not make x · ½", value)


def _scaled_x(value: ir.Value, x: ir.Value | None, nodes: list[ir.Node]) -> tuple[ir.Value, float]:
    """x, and the constant that it is multiplied by before it is a factor of the product."""
    if value is x:
        return x, 1.0
    node = value.producer()
    if x is None and not (node is not None and is_op(node, "Mul", "Div") and any(map(is_constant, node.inputs))):
        return value, 1.0
    if x is None and not choose((True, False)):
        return value, 1.0
    half = producer(value, "Mul", "Div")
    number, source = _scaled(half)
    need(x is None or source is x, "the product is not that of the same x", value)
    nodes.append(half)
    return source, number


def _other_operand(user: ir.Node, value: ir.Value) -> ir.Value:
    a, b = inputs(user, 2)
    need(a is not b, "the product is a square", user)
    return b if a is value else a


def _scaled(node: ir.Node) -> tuple[float, ir.Value]:
    """The factor, ½, 1 or 2, by which a Mul or Div scales an operand, and that operand, which keeps its shape."""
    a, b = inputs(node, 2)
    number, other = (b, a) if is_constant(b) else (a, b)
    need(is_op(node, "Mul") or number is b, "x divides", node)
    factor = scalar(number)
    need(factor in (0.5, 1.0, 2.0), "the factors do not make x · ½", number)
    need(keeps_rank(number, other), "the constant would raise the rank", number)
    return (factor if is_op(node, "Mul") else 1 / factor), other


def polynomial(value: ir.Value, x: ir.Value, nodes: list[ir.Node]) -> Polynomial:
    """A value as a polynomial of another value: its coefficients by degree.

    Args:
        value: The polynomial, built of Add, Sub, Mul, Div and Pow with constants that leave the shape of x.
        x: The variable of the polynomial.
        nodes: The nodes of the polynomial are added to it.

    Raises:
        Refusal: If it is none, or has more than `MAX_TERMS` operations.
    """
    too_long = Refusal("the polynomial is too long", value)
    return walk(partial(_polynomial, x, nodes), value, unknown=too_long)


def _polynomial(x: ir.Value, nodes: list[ir.Node], value: ir.Value) -> Question[ir.Value, Polynomial]:
    if value is x:
        return {1: 1.0}
    if is_constant(value):
        need(keeps_rank(value, x), "the constant would raise the rank", value)
        return {0: scalar(value)}
    node = producer(value, "Add", "Sub", "Mul", "Div", "Pow")
    need(len(nodes) < MAX_TERMS, "the polynomial is too long", value)
    nodes.append(node)
    first, second = inputs(node, 2)
    left, right = (yield first), (yield second)
    match node.op_type:
        case "Add":
            return {degree: left.get(degree, 0.0) + right.get(degree, 0.0) for degree in left.keys() | right.keys()}
        case "Sub":
            return {degree: left.get(degree, 0.0) - right.get(degree, 0.0) for degree in left.keys() | right.keys()}
        case "Mul":
            return _times(left, right)
    constant = right.get(0, math.nan) if right.keys() == {0} else math.nan
    if node.op_type == "Div":
        need(constant != 0 and not math.isnan(constant), "it is no polynomial", node)
        return {degree: coefficient / constant for degree, coefficient in left.items()}
    need(constant in (1.0, 2.0, 3.0), "it is no polynomial", node)
    power = left
    for _ in range(int(constant) - 1):
        power = _times(power, left)
    return power


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for degree, coefficient in left.items():
        for other, factor in right.items():
            product[degree + other] = product.get(degree + other, 0.0) + coefficient * factor
    return product


__all__ = ["Polynomial", "activation", "half_of_one_plus", "polynomial"]

"""GELU, ``x · ½ · (1 + f(x))``: by the error function, or by a hyperbolic tangent that is near to it.

As exporters spell it, it takes five kernels or more, each a pass over memory; one kernel does it, and adds the bias of
a dense layer on the way.
"""

from __future__ import annotations

import math
from functools import partial

import onnx_ir as ir

from ortopt.analysis.kernels import CPU
from ortopt.framework import placement
from ortopt.graph import scope
from ortopt.graph.constants import EPSILONS
from ortopt.graph.match import (
    DOUBLE,
    FLOAT16,
    Refusal,
    attribute,
    choose,
    dims,
    dtype,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    is_scalar,
    is_used_once,
    is_vector_of,
    keeps_rank,
    need,
    only_user,
    operand_scalar,
    opset,
    optional,
    producer,
    scalar,
)
from ortopt.graph.walk import Question, walk
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.activation._spelled import other_operand

STANDARD_FROM = 20
MAX_FACTORS = 3
MAX_TERMS = 12
LINEAR = math.sqrt(2 / math.pi)
COEFFICIENTS = {1: LINEAR, 3: LINEAR * 0.044715}
FEW_DIGITS = 1e-5
"""What people write for √2, or for the coefficients, as a relative error: 1.41421, 0.79788. ONNX Runtime's own."""

WITHIN = {DOUBLE: 1e-12, FLOAT16: 2 * EPSILONS[FLOAT16]}
"""What is allowed for coefficients in other types: of halves, the product of two is off by as much as both together."""

Polynomial = dict[int, float]


class _SpelledGelu(RewriteRule[Match]):
    """Level 1 emits the standard op where the opset has it, level 2 ONNX Runtime's own elsewhere."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    after = ("constant_folding",)
    looks_downstream = True
    numerics = Numerics.REORDERED


class GeluFusion(_SpelledGelu):
    """``x · ½ · (1 + Erf(x / √2))`` → ``Gelu(x)``."""

    roots = ("Erf",)
    produces = ((MICROSOFT, "Gelu"),)
    fuses = (("", "Gelu"), *produces)

    def match(self, root: ir.Node) -> Match:
        """A division by √2 above the Erf and the product below it; ½ may be anywhere in the product."""
        scaling, x = _divided(root)
        nodes = [scaling, root]
        _, y = _half_of_one_plus(root, x, nodes)
        domain = "" if opset(root) >= STANDARD_FROM else MICROSOFT
        return Match.ending_in(y, dict.fromkeys(nodes), partial(_activation, nodes[-1], x, "Gelu", domain))


class FastGeluFusion(_SpelledGelu):
    """``x · ½ · (1 + Tanh(√(2/π) · (x + 0.044715 · x³)))`` → ``Gelu<approximate="tanh">(x)`` or ``FastGelu(x)``."""

    roots = ("Tanh",)
    lookback = 7
    produces = ((MICROSOFT, "FastGelu"),)
    fuses = (("", "Gelu"), *produces)

    def match(self, root: ir.Node) -> Match:
        """The product below the Tanh has x as a factor; the argument of the Tanh is a polynomial of x, in any form."""
        below: list[ir.Node] = []
        x, y = _half_of_one_plus(root, None, below)
        above: list[ir.Node] = []
        coefficients = _polynomial(inputs(root, 1)[0], x, above)
        within = WITHIN.get(dtype(x), FEW_DIGITS)
        fitting = all(
            math.isclose(coefficients.get(degree, 0.0), COEFFICIENTS.get(degree, 0.0), rel_tol=within)
            for degree in coefficients.keys() | COEFFICIENTS.keys()
        )
        need(fitting, "the argument of Tanh is not √(2/π) · (x + 0.044715 · x³)", root)
        build = partial(_activation, below[-1], x, "FastGelu", MICROSOFT)
        if opset(root) >= STANDARD_FROM:
            build = partial(_activation, below[-1], x, "Gelu", approximate="tanh")
        return Match.ending_in(y, dict.fromkeys((*above, root, *below)), build)


class BiasGeluFusion(RewriteRule[Match]):
    """``Gelu(x + bias)`` → ``com.microsoft.BiasGelu(x, bias)``, and ``FastGelu(x + bias)`` → ``FastGelu(x, bias)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("gelu_fusion", "fast_gelu_fusion")
    roots = ("Gelu", f"{MICROSOFT}::Gelu", f"{MICROSOFT}::FastGelu")
    produces = ((MICROSOFT, "BiasGelu"), (MICROSOFT, "FastGelu"))
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """The sum of a tensor and a row of its last dimension."""
        exact = not is_op(root, "FastGelu", domain=MICROSOFT)
        if is_op(root, "Gelu"):
            exact = attribute(root, "approximate", "none") == "none"
        need(optional(root, 1) is None, "it has a bias", root)
        addition = producer(inputs(root, 1)[0], "Add")
        for operands in (inputs(addition, 2), inputs(addition, 2)[::-1]):
            shape = dims(operands[0])
            if shape and is_vector_of(operands[1], shape[-1]):
                # before 1.30 the kernel divides by its length
                need(is_never_zero(shape[-1], root), "the row may have no elements", operands[1])
                op = "BiasGelu" if exact else "FastGelu"
                return Match((addition, root), partial(ir.node, op, operands, domain=MICROSOFT))
        raise Refusal("no operand is a row of the last dimension", addition)


class GeluApproximation(RewriteRule[Match]):
    """``Gelu(x)`` → ``Gelu<approximate="tanh">(x)``; ONNX Runtime's ``Gelu`` and ``BiasGelu`` → ``FastGelu``.

    The results differ by up to 5e-4, so this runs only if ``--enable`` asks for it.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("bias_gelu_fusion", "gelu_fusion")
    enabled = False
    roots = ("Gelu", f"{MICROSOFT}::BiasGelu", f"{MICROSOFT}::Gelu")
    produces = ((MICROSOFT, "FastGelu"),)
    numerics = Numerics.APPROXIMATE

    def match(self, root: ir.Node) -> Match:
        """A Gelu by the error function; ONNX Runtime's may have a bias."""
        need(attribute(root, "approximate", "none") == "none", "it is approximate already", root)
        (x,) = inputs(root, 1)
        if root.domain == "":
            return Match((root,), lambda: ir.node("Gelu", [x], {"approximate": "tanh"}))
        return Match((root,), lambda: ir.node("FastGelu", root.inputs, domain=MICROSOFT))


def _divided(erf: ir.Node) -> tuple[ir.Node, ir.Value]:
    """The node that divides by √2, and what it divides."""
    (argument,) = inputs(erf, 1)
    scaling = producer(argument, "Div", "Mul")
    a, b = inputs(scaling, 2)
    within = 0.0 if dtype(argument) == DOUBLE else FEW_DIGITS
    if is_op(scaling, "Div"):
        pairs = [(b, a)] if is_scalar(b, math.sqrt(2), within) else []
    else:
        pairs = [pair for pair in ((b, a), (a, b)) if is_scalar(pair[0], math.sqrt(0.5), within)]
    need(bool(pairs), "the argument of Erf is not x / √2", scaling)
    number, x = pairs[0]
    need(keeps_rank(number, x), "the constant would raise the rank", number)
    return scaling, x


def _activation(root: ir.Node, x: ir.Value, op: str, domain: str = "", **attributes: str) -> ir.Node:
    """An activation of x. On the CPU, which has no kernel of halves, they become floats for it.

    Args:
        root: A node of the pattern, which says where it runs.
        x: The operand.
        op: The op.
        domain: Its domain.
        attributes: Its attributes.
    """
    options = scope.of_node(root).options
    converted = options.float16 or options.bfloat16 or options.target is not Target.ORT
    if x.dtype != FLOAT16 or domain == "" or converted or placement.provider_of(root, options.providers) != CPU:
        return ir.node(op, [x], attributes, domain=domain)
    floats = ir.node("Cast", [x], {"to": ir.DataType.FLOAT}).outputs[0]
    result = ir.node(op, [floats], attributes, domain=domain).outputs[0]
    return ir.node("Cast", [result], {"to": ir.DataType.FLOAT16})


def _half_of_one_plus(root: ir.Node, x: ir.Value | None, nodes: list[ir.Node]) -> tuple[ir.Value, ir.Value]:
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
        other = other_operand(user, value)
        need(other is not value, "the product is a square", user)
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
    if x is None and not (is_op(node, "Mul", "Div") and any(map(is_constant, node.inputs))):
        return value, 1.0
    if x is None and not choose((True, False)):
        return value, 1.0
    half = producer(value, "Mul", "Div")
    number, source = _scaled(half)
    need(x is None or source is x, "the product is not that of the same x", value)
    nodes.append(half)
    return source, number


def _scaled(node: ir.Node) -> tuple[float, ir.Value]:
    """The factor, ½, 1 or 2, by which a Mul or Div scales an operand, and that operand, which keeps its shape."""
    a, b = inputs(node, 2)
    number, other = (b, a) if is_constant(b) else (a, b)
    need(is_op(node, "Mul") or number is b, "x divides", node)
    factor = scalar(number)
    need(factor in (0.5, 1.0, 2.0), "the factors do not make x · ½", number)
    need(keeps_rank(number, other), "the constant would raise the rank", number)
    return (factor if is_op(node, "Mul") else 1 / factor), other


def _polynomial(value: ir.Value, x: ir.Value, nodes: list[ir.Node]) -> Polynomial:
    """A value as a polynomial of another value: its coefficients by degree.

    Args:
        value: The polynomial, built of Add, Sub, Mul, Div and Pow with constants that leave the shape of x.
        x: The variable of the polynomial.
        nodes: The nodes of the polynomial are added to it.

    Raises:
        Refusal: If it is none, or has more than `MAX_TERMS` operations.
    """
    too_long = Refusal("the polynomial is too long", value)
    return walk(partial(_terms, x, nodes), value, unknown=too_long)


def _terms(x: ir.Value, nodes: list[ir.Node], value: ir.Value) -> Question[ir.Value, Polynomial]:
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

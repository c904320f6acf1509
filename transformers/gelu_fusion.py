"""GELU as PyTorch's exporters spell it takes five kernels and five passes over memory; one kernel does it."""

import math
from typing import NamedTuple

import onnx_ir as ir

from ortopt.graph.match import (
    DOUBLE,
    Refusal,
    dtype,
    fits,
    is_constant,
    is_op,
    is_scalar,
    is_used_once,
    need,
    only_user,
    operand_scalar,
    opset,
    producer,
    scalar,
    values,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule

FEW_DIGITS = 1e-5
"""What people write for √2, as a relative error: 1.41421, 0.7071. ONNX Runtime's own tolerance."""

MOST_FACTORS = 3


class Found(NamedTuple):
    """The nodes from the error function to the product, and what goes in and comes out."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value
    domain: str

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The product, which stands below the root."""
        return (self.y,)


class GeluFusion(RewriteRule[Found]):
    """``x · ½ · (1 + Erf(x / √2))`` → ``Gelu(x)``.

    Level 1 emits the standard op where the opset has it, level 2 ONNX Runtime's own elsewhere.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    after = ("constant_folding",)
    roots = ("Erf",)
    produces = (("com.microsoft", "Gelu"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The argument above the error function, the product below it; ½ may be anywhere in the product."""
        scaling, x = _argument(root)
        nodes = [scaling, root]
        total, share = _one_plus(root, nodes)
        y = _product(total, share, x, nodes)
        return Found(tuple(dict.fromkeys(nodes)), x, y, "" if opset(root) >= 20 else "com.microsoft")

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the Gelu in place of the last product."""
        gelu = ir.node("Gelu", [found.x], domain=found.domain)
        return {found.y: gelu.outputs[0]}


def _argument(erf: ir.Node) -> tuple[ir.Node, ir.Value]:
    """The node that divides by √2, and what it divides."""
    (argument,) = values(erf, 1)
    scaling = producer(argument, "Div", "Mul")
    a, b = values(scaling, 2)
    within = 0.0 if dtype(argument) == DOUBLE else FEW_DIGITS
    if is_op(scaling, "Div"):
        pairs = [(b, a)] if is_scalar(b, math.sqrt(2), within) else []
    else:
        pairs = [pair for pair in ((b, a), (a, b)) if is_scalar(pair[0], math.sqrt(0.5), within)]
    need(bool(pairs), "the argument of Erf is not x / √2", scaling)
    number, x = pairs[0]
    need(fits(number, x), "the constant would raise the rank", number)
    return scaling, x


def _one_plus(erf: ir.Node, nodes: list[ir.Node]) -> tuple[ir.Value, float]:
    """``1 + erf`` and 1, or ``½ + ½·erf`` and ½."""
    user = only_user(erf.outputs[0], "Add", "Mul", "Div")
    share = 1.0
    if not is_op(user, "Add"):
        number, _ = _scaled(user)
        share = number
        nodes.append(user)
        user = only_user(user.outputs[0], "Add")
    operand_scalar(user, share)
    nodes.append(user)
    return user.outputs[0], share


def _product(value: ir.Value, share: float, x: ir.Value, nodes: list[ir.Node]) -> ir.Value:
    """The product of a value that counts `share`, of x once, and of constants that make it ½ in all."""
    has_x = False
    for _ in range(MOST_FACTORS):
        need(not has_x or is_used_once(value), "the factors do not make x · ½", value)
        user = only_user(value, "Mul", "Div")
        nodes.append(user)
        other = _other_operand(user, value)
        if is_constant(other):
            number, _ = _scaled(user)
            share *= number
        else:
            need(is_op(user, "Mul") and not has_x, "the product has another factor", other)
            if other is not x:
                half = producer(other, "Mul", "Div")
                number, scaled = _scaled(half)
                need(scaled is x, "the product is not that of Erf's own x", other)
                share *= number
                nodes.append(half)
            has_x = True
        value = user.outputs[0]
        if has_x and share == 0.5:
            return value
    raise Refusal("the factors do not make x · ½", value)


def _other_operand(user: ir.Node, value: ir.Value) -> ir.Value:
    a, b = values(user, 2)
    need(a is not b, "the product is a square", user)
    return b if a is value else a


def _scaled(node: ir.Node) -> tuple[float, ir.Value]:
    """By how much a Mul or Div scales its other operand, which keeps its shape; exact, for ½ and 2 are."""
    a, b = values(node, 2)
    number, other = (b, a) if is_constant(b) else (a, b)
    need(is_op(node, "Mul") or number is b, "x divides", node)
    factor = scalar(number)
    need(factor in (0.5, 1.0, 2.0), "the factors do not make x · ½", number)
    need(fits(number, other), "the constant would raise the rank", number)
    return (factor if is_op(node, "Mul") else 1 / factor), other

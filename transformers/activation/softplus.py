"""Softplus, ``log(1 + eˣ)``, and Mish, ``x · tanh(softplus(x))``.

Spelled out, as they stand, guarded against overflow, or stable, each is three to five ops; the standard has one. The
CPU's kernels for both take elements one by one, and those for Exp and arithmetic many at a time: level 3 takes a Mish
apart where that is faster.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.costs import Form
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    choose,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    keeps_rank,
    need,
    need_float,
    need_float32,
    only_user,
    operand_from,
    operand_scalar,
    producer,
    scalar,
    users,
)
from ortopt.options import MEASURED_TARGETS, Numerics, Target, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.patterns.slopes import threshold
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded, Match, RewriteRule
from ortopt.transformers.activation._spelled import beside_zero, check_taken_apart, other_operand

FORM = Form("", "Exp", "in place of Mish")

NOT_SOFTPLUS = "it is not log(1 + exp(x))"
MAX_ARGUMENTS = {FLOAT: 88.0, BFLOAT16: 88.0, DOUBLE: 709.0, FLOAT16: 11.0}
"""What exp can be taken of without overflow, by element type."""

MIN_ARGUMENTS = {FLOAT: 17.0, BFLOAT16: 6.0, DOUBLE: 37.0, FLOAT16: 8.0}
"""From here on the logarithm is x itself, but for the last place."""

TANH_IS_ONE_FROM = 20.0
"""From here on, the Tanh of a Mish is 1: what is larger would overflow in Exp, sooner or later."""


class Spelled(Struct, frozen=True):
    """A Softplus or a Mish.

    Attributes:
        nodes: The nodes that compute it, the one that gives the result last.
        x: The value that it is computed from.
        overflows: Whether it is infinite where exp(x) is, and not x.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    overflows: bool = False

    @property
    def y(self) -> ir.Value:
        """The result."""
        return self.nodes[-1].outputs[0]


class SoftplusFusion(RewriteRule[Match]):
    """``Where(x > 20, x, Log(Exp(x) + 1))`` → ``Softplus(x)``; without the guard where x is never large.

    ``Log(Exp(x) + 1)`` without a guard stays as it is: from x = 89 on it is infinite, and a Softplus is not.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding",)
    roots = ("Log",)
    looks_downstream = True
    opsets = (9, NEWEST_OPSET)
    lookback = 5
    fuses = (("", "Softplus"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A form that does not overflow where a Softplus does not."""
        value = root.outputs[0]
        below = [node for node in users(value) if is_op(node, "Add", "Where") and is_used_once(value)]
        spelled = _softplus(choose([*below, root]))
        need_single(spelled.x)
        need(not spelled.overflows, "exp(x) may overflow, and the result be infinite", spelled.x)
        return Match.ending_in(spelled.y, spelled.nodes, lambda: ir.node("Softplus", [spelled.x]))


class SoftplusGuardElimination(Elimination):
    """``Where(x > 20, x, Softplus(x))`` → ``Softplus(x)``, as PyTorch's dynamo exports each.

    For ONNX Runtime, whose kernel does not overflow; another runtime's may.
    """

    roots = ("Where",)
    numerics = Numerics.REORDERED
    targets = (Target.ORT, Target.WEB, Target.MOBILE)

    def match(self, root: ir.Node) -> Forwarded:
        """The guard of the spelled form, which the op has no need of."""
        _, left, right, x, rest = threshold(root)
        softplus = producer(rest, "Softplus")
        need(left is x and inputs(softplus, 1)[0] is x, "the guard is of another value", root)
        need_float(x)
        need(keeps_rank(right, x), "the constant would raise the rank", right)
        need(scalar(right) >= MIN_ARGUMENTS[dtype(x)], "the threshold is not where the result is x itself", right)
        return Forwarded((root,), rest)


class MishFusion(RewriteRule[Match]):
    """``x · Tanh(Softplus(x))`` → ``Mish(x)``, the softplus in any spelling.

    Where ``Exp(x)`` overflows, the Tanh is 1 in any case.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "opset_conversion", "softplus_fusion")
    roots = ("Tanh",)
    opsets = (18, NEWEST_OPSET)
    lookback = 6
    looks_downstream = True
    fuses = (("", "Mish"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """The softplus above the Tanh, and the product with the same x below it."""
        mish = _mish(root)
        return Match.ending_in(mish.y, mish.nodes, lambda: ir.node("Mish", [mish.x]))


class MishDecomposition(RewriteRule[Match]):
    """``x · Tanh(Softplus(x))``, ``Mish(x)`` → ``x · n / (n + 2)`` with ``n = e · (e + 2)``, ``e = Exp(Min(x, 20))``.

    With ``e = Exp(x)``, the Tanh of ``Log(1 + e)`` is ``((1 + e)² - 1) / ((1 + e)² + 1)``; no digits are lost for small
    x. For few elements, more kernels cost more than they save.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Tanh", "Mish")
    opsets = (8, NEWEST_OPSET)  # before, Min did not broadcast
    lookback = 6
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = MEASURED_TARGETS
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Match:
        """A Mish of enough elements, in one op or spelled out."""
        mish = Spelled((root,), inputs(root, 1)[0]) if is_op(root, "Mish") else _mish(root)
        need_float32(mish.x)
        check_taken_apart(root, FORM, mish.x)
        return Match.ending_in(mish.y, mish.nodes, lambda: _arithmetic(mish.x))


def _arithmetic(x: ir.Value) -> ir.Node:
    two = constant(2.0, FLOAT)
    power = ir.node("Exp", [ir.node("Min", [x, constant(TANH_IS_ONE_FROM, FLOAT)]).outputs[0]]).outputs[0]
    above = ir.node("Mul", [power, ir.node("Add", [power, two]).outputs[0]]).outputs[0]
    tanh = ir.node("Div", [above, ir.node("Add", [above, two]).outputs[0]]).outputs[0]
    return ir.node("Mul", [x, tanh])


def _mish(root: ir.Node) -> Spelled:
    """The Mish whose Tanh a node is: the softplus above it, and the product with the same x below it."""
    softplus = _softplus(producer(inputs(root, 1)[0], "Softplus", "Log", "Where", "Add"))
    need_single(softplus.x)
    product = only_user(root.outputs[0], "Mul")
    need(other_operand(product, root.outputs[0]) is softplus.x, "the product is of something else", product)
    return Spelled((*softplus.nodes, root, product), softplus.x)


def _softplus(root: ir.Node) -> Spelled:
    """The softplus that a Softplus, a Log, a Where or an Add ends.

    Raises:
        Refusal: If it is none.
    """
    match root.op_type:
        case "Softplus":
            return Spelled((root,), inputs(root, 1)[0])
        case "Log":
            nodes, x = _logarithm(root)
            return Spelled(nodes, x, overflows=not _is_bounded(x))
        case "Where":
            return _guarded(root)
    return _stable(root)


def _logarithm(log: ir.Node) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """``Log(Exp(x) + 1)``: its nodes and x."""
    total = producer(inputs(log, 1)[0], "Add")
    power = producer(operand_scalar(total, 1.0), "Exp")
    (x,) = inputs(power, 1)
    need_float(x)
    return (power, total, log), x


def _is_bounded(x: ir.Value) -> bool:
    """Whether a value is never so large that exp of it overflows."""
    node = x.producer()
    if is_op(node, "Sigmoid", "Tanh", "HardSigmoid", "Softmax", "Softsign", "Erf", "Sin", "Cos"):
        return True
    if is_op(node, "Clip", "Min"):
        bounds = node.inputs[2:3] if is_op(node, "Clip") else node.inputs
        most = MAX_ARGUMENTS[dtype(x)]
        return any(bound is not None and is_constant(bound) and _all_at_most(bound, most) for bound in bounds)
    return False


def _all_at_most(bound: ir.Value, most: float) -> bool:
    tensor = bound.const_value
    return tensor is not None and tensor.size == 1 and scalar(bound) <= most


def _guarded(root: ir.Node) -> Spelled:
    """``Where(x > 20, x, Log(Exp(x) + 1))``, as PyTorch defines it."""
    comparison, left, right, x, rest = threshold(root)
    nodes, same = _logarithm(producer(rest, "Log"))
    need(same is x and left is x, NOT_SOFTPLUS, root)
    kind, limit = dtype(x), scalar(right)
    need(keeps_rank(right, x), "the constant would raise the rank", right)
    need(
        MIN_ARGUMENTS[kind] <= limit <= MAX_ARGUMENTS[kind],
        "the threshold is not where exp(x) is far above 1, and finite",
        right,
    )
    return Spelled((comparison, *nodes, root), x)


def _stable(root: ir.Node) -> Spelled:
    """``Max(x, 0) + Log(Exp(-Abs(x)) + 1)``, the maximum as a Relu or not."""
    log, other = operand_from(root, "Log")
    nodes, exponent = _logarithm(log)
    negation = producer(exponent, "Neg")
    magnitude = producer(inputs(negation, 1)[0], "Abs")
    (x,) = inputs(magnitude, 1)
    largest = producer(other, "Relu", "Max")
    source = inputs(largest, 1)[0] if is_op(largest, "Relu") else beside_zero(largest, NOT_SOFTPLUS)
    need(source is x, NOT_SOFTPLUS, largest)
    return Spelled((magnitude, negation, *nodes, largest, root), x)

"""Values that are a number times x where x is positive, and another number times x elsewhere.

A multiple, a sum, a Relu, an absolute value, a maximum or a choice of such values of the same x is such a value again:
``Relu(x) - a · Relu(-x)``, ``Max(x, a · x)`` and ``Relu(x) + a / 2 · (x - Abs(x))`` have the slopes 1 and a: each is a
Relu with a slope.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.signs import has_one_zero
from ortopt.graph.match import (
    Refusal,
    array_of,
    attribute,
    broadcasts_to,
    dims,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    keeps_rank,
    need,
    need_float,
    only_user,
    operand_constant,
    operand_from,
    producer,
)
from ortopt.graph.walk import Question, walk
from ortopt.patterns.clamp import zeros_have_no_sign

NOT_SLOPED: Final = "it is not x where x is positive, and a slope times x elsewhere"

ROOTS: Final = ("Abs", "Max", "Min", "Relu", "Where")
"""What a Relu with a slope that is spelled out is found by."""

_LARGEST_SLOPE: Final = 2.0**24
_ROUNDING: Final = 2.0**-22  # by how much two numbers of single precision that make up 1 may miss it
_FURTHEST: Final = 4  # of the ops between a Relu, or an Abs, and the whole
_MOST: Final = 16


class SlopedRelu(Struct, frozen=True):
    """``x`` where it is positive, ``slope · x`` elsewhere.

    Attributes:
        nodes: The nodes that compute it, the one that gives the result last.
        x: The value that it is computed from.
        slope: One number, or numbers that broadcast to x.
        finite: Whether it is so for finite numbers only.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    slope: np.ndarray
    finite: bool = False

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result."""
        return tuple(self.nodes[-1].outputs)


def sloped_relu(root: ir.Node) -> SlopedRelu:
    """The Relu with a slope that a node is part of, or is.

    Args:
        root: One of `ROOTS`, or a PRelu.

    Raises:
        Refusal: If it is none.
    """
    x, slopes = _whole(root)
    need_float(x)
    slope = slopes.below
    need(float(np.abs(slope).max()) <= _LARGEST_SLOPE, "a slope is large", x)
    need(_keeps_zeros(root, x, slopes), "a zero would have the other sign", x)
    becomes_relu = bool((slope == 0).all())
    # A Relu makes 0 of an infinity below 0, and a finite number does not come of a NaN.
    need(not (becomes_relu and slopes.no_numbers[1]), "of an infinity it makes no number", x)
    spreads = bool((slope == 0).any()) and not becomes_relu
    return SlopedRelu(slopes.nodes, x, slope, any(slopes.no_numbers) or spreads)


def _keeps_zeros(root: ir.Node, x: ir.Value, slopes: Slopes) -> bool:
    """Whether zeros have the same sign in the end, or nobody tells."""
    whole = slopes.nodes[-1]
    is_sum = is_op(root, "Abs", "Relu")
    halves = not is_sum or not any(is_op(node, "Abs", "Min") for node in slopes.nodes)
    if halves and bool((slopes.below > 0).all()):
        return True
    # A sum of two zeros is 0.0 where one of them is; what is chosen at 0, or multiplied by 0, has a sign.
    added = is_sum and (bool(slopes.below.all()) or not slopes.below.any())
    return (added and zeros_have_no_sign(x)) or has_one_zero(whole.outputs[0])


def _whole(root: ir.Node) -> tuple[ir.Value, Slopes]:
    """What a root is part of, and the value that all of it is computed from."""
    match root.op_type:
        case "Max" | "Min":
            _, x = operand_from(root, "Mul", "Div")
        case "Where":
            x = threshold(root).tested
        case "PRelu":
            (x,) = inputs(root, 1)
        case _:
            return _below(root)
    slopes = slopes_of(root.outputs[0], x)
    need(_is_one(slopes.above), NOT_SLOPED, root)
    return x, slopes


def _below(root: ir.Node) -> tuple[ir.Value, Slopes]:
    """As `_whole`, of a Relu or an Abs that is added to something; that of a Relu is one of what the Relu reads."""
    (x,) = inputs(root, 1)
    before = x.producer()
    if is_op(before, "Relu"):
        (x,) = inputs(before, 1)
    node = root
    for _ in range(_FURTHEST):
        node = only_user(node.outputs[0], "Add", "Div", "Mul", "Neg", "Sub")
        slopes = slopes_of(node.outputs[0], x)
        if _is_one(slopes.above):
            return x, slopes
    raise Refusal(NOT_SLOPED, root)


def _is_one(slope: np.ndarray) -> bool:
    return bool((np.abs(slope - 1) <= _ROUNDING).all())


class Slopes(NamedTuple):
    """A value with slopes.

    Attributes:
        nodes: The nodes that compute it from x, the last one last.
        above: What x is multiplied by where it is positive: one number, or numbers that broadcast to x.
        below: What x is multiplied by elsewhere, likewise.
        no_numbers: Whether an infinite x gives NaN, where it is positive and elsewhere: a difference of infinities.
    """

    nodes: tuple[ir.Node, ...]
    above: np.ndarray
    below: np.ndarray
    no_numbers: tuple[bool, bool] = (False, False)


def slopes_of(value: ir.Value, x: ir.Value) -> Slopes:
    """A value's slopes.

    Args:
        value: The value.
        x: What it is computed from, beside constants.

    Raises:
        Refusal: If it is something else.
    """
    return walk(partial(_slopes, x), value, unknown=Refusal(NOT_SLOPED, value), most=_MOST)


def _slopes(x: ir.Value, value: ir.Value) -> Question[ir.Value, Slopes]:
    one = np.ones(())
    if value is x:
        return Slopes((), one, one)
    node = value.producer()
    if is_op(node, "Relu", "Abs", "Neg", "LeakyRelu"):
        return _bent(node, (yield inputs(node, 1)[0]))
    if is_op(node, "PRelu"):
        of, slope = inputs(node, 2)
        return _kept(node, (yield of), _factor(slope, of))
    if is_op(node, "Mul", "Div"):
        number, of = operand_constant(node)
        need(is_op(node, "Mul") or node.inputs[1] is number, NOT_SLOPED, node)
        return _multiple(node, (yield of), _factor(number, of))
    if is_op(node, "Add", "Sub", "Max", "Min"):
        need(len(node.inputs) == 2, NOT_SLOPED, node)
        first, second = inputs(node, 2)
        left = _NOTHING if _is_zero(first, second, node) else (yield first)
        right = _NOTHING if _is_zero(second, first, node) else (yield second)
        return _joined(node, left, right)
    if is_op(node, "Where"):
        choice = threshold(node)
        fits = choice.tested is x and is_scalar(choice.bound, 0.0) and keeps_rank(choice.bound, x)
        need(fits, NOT_SLOPED, choice.comparison)
        upper, lower = (yield choice.above), (yield choice.below)
        nodes = (choice.comparison, *upper.nodes, *lower.nodes, node)
        return Slopes(nodes, upper.above, lower.below, (upper.no_numbers[0], lower.no_numbers[1]))
    raise Refusal(NOT_SLOPED, value)


_NOTHING: Final = Slopes((), np.zeros(()), np.zeros(()))


def _is_zero(value: ir.Value, other: ir.Value, node: ir.Node) -> bool:
    """Whether a maximum or a minimum is taken with 0."""
    return is_op(node, "Max", "Min") and is_scalar(value, 0.0) and keeps_rank(value, other)


def _factor(number: ir.Value, of: ir.Value) -> np.ndarray:
    """What a value is multiplied by, which keeps its shape."""
    content = array_of(number).astype(np.float64)
    fits = keeps_rank(number, of) if content.size == 1 else broadcasts_to(number, dims(of))
    need(fits and content.size > 0, "the slope would enlarge the result", number)
    need(bool((np.abs(content) <= _LARGEST_SLOPE).all()), "a slope is large", number)
    return content


def _multiple(node: ir.Node, own: Slopes, factor: np.ndarray) -> Slopes:
    nodes = (*own.nodes, node)
    if is_op(node, "Div"):
        need(bool((np.abs(factor) >= 1 / _LARGEST_SLOPE).all()), "a slope is large", node)
        return Slopes(nodes, own.above / factor, own.below / factor, own.no_numbers)
    sides = zip(own.no_numbers, (own.above, own.below), strict=True)
    above, below = (one or bool(np.any((slope != 0) & (factor == 0))) for one, slope in sides)  # 0 times an infinity
    return Slopes(nodes, own.above * factor, own.below * factor, (above, below))


def _bent(node: ir.Node, own: Slopes) -> Slopes:
    nodes = (*own.nodes, node)
    match node.op_type:
        case "Abs":
            return Slopes(nodes, np.abs(own.above), -np.abs(own.below), own.no_numbers)
        case "Neg":
            return Slopes(nodes, -own.above, -own.below, own.no_numbers)
        case "Relu":
            return Slopes(nodes, np.maximum(own.above, 0), np.minimum(own.below, 0), own.no_numbers)
        case _:
            return _kept(node, own, np.asarray(attribute(node, "alpha", 0.01)))


def _kept(node: ir.Node, own: Slopes, slope: np.ndarray) -> Slopes:
    """What is left as it is where it is positive, and multiplied elsewhere."""
    above = np.where(own.above >= 0, own.above, own.above * slope)
    below = np.where(own.below <= 0, own.below, own.below * slope)
    return Slopes((*own.nodes, node), above, below, own.no_numbers)


_JOINS: Final[dict[str, tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]]] = {
    "Add": (np.add, np.add),
    "Sub": (np.subtract, np.subtract),
    "Max": (np.maximum, np.minimum),
    "Min": (np.minimum, np.maximum),
}


def _joined(node: ir.Node, left: Slopes, right: Slopes) -> Slopes:
    above, below = _JOINS[node.op_type]
    sign = -1 if is_op(node, "Sub") else 1
    no_numbers = [one or other for one, other in zip(left.no_numbers, right.no_numbers, strict=True)]
    if is_op(node, "Add", "Sub"):
        no_numbers[0] |= bool(np.any(left.above * right.above * sign < 0))
        no_numbers[1] |= bool(np.any(left.below * right.below * sign < 0))
    nodes = tuple(dict.fromkeys((*left.nodes, *right.nodes, node)))
    slopes = above(left.above, right.above), below(left.below, right.below)
    return Slopes(nodes, *slopes, (no_numbers[0], no_numbers[1]))


class Threshold(NamedTuple):
    """``Where(tested > bound, above, below)``, the comparison in any form.

    Attributes:
        comparison: The comparison; equality may belong to either side.
        tested: What is compared.
        bound: What it is compared with: a constant, if one operand is.
        above: What is taken where it is above the bound.
        below: What is taken elsewhere: where it is NaN, too, if the comparison is written so.
    """

    comparison: ir.Node
    tested: ir.Value
    bound: ir.Value
    above: ir.Value
    below: ir.Value


def threshold(root: ir.Node) -> Threshold:
    """What a Where chooses by which comparison.

    Args:
        root: A Where.

    Raises:
        Refusal: If it chooses by no comparison.
    """
    condition, yes, no = inputs(root, 3)
    comparison = producer(condition, "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    tested, bound = inputs(comparison, 2)
    greater = is_op(comparison, "Greater", "GreaterOrEqual")
    if is_constant(tested):
        tested, bound, greater = bound, tested, not greater
    above, below = (yes, no) if greater else (no, yes)
    return Threshold(comparison, tested, bound, above, below)

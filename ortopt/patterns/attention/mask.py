"""What is added to the scores of an attention: masks and biases, and how far down they go."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant, discard
from ortopt.graph.match import FLOAT16, array_of, inputs, is_constant, is_op, optional
from ortopt.graph.walk import Answers, Question, walk
from ortopt.patterns.attention.computed_bounds import computed_bound

LOWEST = float(np.finfo(np.float32).min)
FLOOR = float(np.nextafter(np.float32(LOWEST), np.float32(0)))
"""Stands for the lowest number in masks: ONNX Runtime's kernel takes a row that has nothing above the lowest number for
one without any key. What is added to either of them is lost by rounding: the softmax is the same."""

NEGLIGIBLE = 2.0**100
"""A number of no larger magnitude is lost by rounding where it is added to the lowest number, or to `FLOOR`."""

MAX_HALF = 1024.0
"""In half precision, what is added to larger numbers is rounded to whole ones, which a kernel that computes in single
precision does not do: only 0 and -inf, and numbers below, mask as exactly there as here."""

_MOVES = frozenset({"Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_JOINS: dict[str, Callable[[float, float], float]] = {"Add": operator.add, "Mul": operator.mul, "Sub": operator.add}

_Asked: TypeAlias = "Question[tuple[ir.Value | None, float], float | None]"
"""A question about a value, and what an infinity counts as in it."""


class Depth(Enum):
    """How far down the elements of a mask go."""

    SHALLOW = "all elements are above the lowest number"
    FINITE = "no element is infinite"
    UNKNOWN = "elements may be infinite"


def depth(mask: ir.Value) -> Depth:
    """How far down the elements of a mask go, as far as constants and types tell."""
    return depth_of(bound(mask))


def depth_of(largest: float | None) -> Depth:
    """How far down elements of a magnitude go; None is an unknown one."""
    if largest is None or largest == math.inf:
        return Depth.UNKNOWN
    if largest <= -FLOOR:
        return Depth.SHALLOW
    return Depth.FINITE if largest <= -LOWEST else Depth.UNKNOWN


def bound(value: ir.Value | None, infinite: float = math.inf) -> float | None:
    """The largest magnitude that an element can have; None if that is not known.

    Args:
        value: A value.
        infinite: What an infinity counts as.
    """
    return walk(_bound, (value, infinite), unknown=None)


def known_bound(value: ir.Value | None, infinite: float = math.inf) -> float | None:
    """The same, or what is known of a value that is computed of normalized ones.

    Args:
        value: A value.
        infinite: What an infinity counts as.
    """
    own = bound(value, infinite)
    return computed_bound(value, bound) if own is None and value is not None else own


def _bound(about: tuple[ir.Value | None, float]) -> _Asked:
    value, infinite = about
    if value is None:
        return None
    if is_constant(value):
        content = array_of(value)
        if content.dtype.kind not in "fiub":
            return None
        magnitudes = np.abs(content.astype(np.float64))
        largest = float(np.where(np.isinf(magnitudes), infinite, magnitudes).max(initial=0.0))
        return None if math.isnan(largest) else largest
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type in _MOVES:
        return (yield optional(node, 0), infinite)
    if node.op_type in {"Neg", "Trilu"}:  # Trilu: what it leaves, and 0
        return (yield node.inputs[0], infinite)
    if node.op_type == "Where":
        return (yield from _together(max, node.inputs[1:], infinite))
    if node.op_type == "ConstantOfShape":
        return (yield _filled(node), infinite)
    if node.op_type == "Concat":
        return (yield from _together(max, node.inputs, infinite))
    if node.op_type == "ScatterND" and node.attributes.get_string("reduction", "none") == "none":
        return (yield from _together(max, (node.inputs[0], node.inputs[2]), infinite))
    if node.op_type in _JOINS:  # an infinity is one
        return (yield from _together(_JOINS[node.op_type], node.inputs, math.inf))
    if node.op_type == "Cast":
        return _cast_bound(node.inputs[0])
    return None


def _filled(node: ir.Node) -> ir.Value | None:
    """What a ConstantOfShape is full of; None where a function's caller decides it."""
    value = node.attributes.get("value")
    if value is None:
        return constant(0.0)
    return None if value.is_ref() else constant(value.as_tensor())


def _together(join: Callable[[float, float], float], values: Sequence[ir.Value | None], infinite: float) -> _Asked:
    total: float | None = None
    for value in values:
        bound = yield value, infinite
        if bound is None:
            return None
        total = bound if total is None else join(total, bound)
    return total


def _cast_bound(value: ir.Value | None) -> float | None:
    """The bound of a number by the type that it was cast from."""
    if value is None or value.dtype is None:
        return None
    if value.dtype == ir.DataType.BOOL:
        return 1.0
    return 2.0**value.dtype.bitwidth if value.dtype.is_integer() else None


def is_zero(bias: ir.Value) -> bool:
    """Whether a mask is a constant that masks nothing."""
    return is_constant(bias) and not array_of(bias).any()


def unmasked_bias(bias: ir.Value, *, guarded: bool, kind: ir.DataType) -> ir.Value:
    """A mask as the kernel of Attention wants it, with the meaning that it has for a softmax.

    Args:
        bias: What is added to the scores.
        guarded: Whether a row of NaNs, which a row of -inf gives, was set to 0, as the kernel does.
        kind: Its element type.
    """
    if kind == FLOAT16:
        return bias  # what is let pass has no lowest number, and no row without any key
    return _lifted(bias, guarded=guarded)


def _lifted(bias: ir.Value, *, guarded: bool) -> ir.Value:
    """A sum of a mask and of small numbers has the mask lifted before, which may have fewer elements."""
    bounds = _Bounds()
    sums: list[tuple[ir.Node, ir.Value]] = []
    mask = bias
    while not bounds.is_lifted(mask, guarded and not sums) and (found := bounds.summand(mask)) is not None:
        sum_, mask, other = found
        sums.append((sum_, other))
    lifted = _lifted_alone(mask, bounds, guarded=guarded and not sums)
    for sum_, other in reversed(sums):
        lifted = ir.node("Add", [lifted, other]).outputs[0]
        if not sum_.outputs[0].uses():
            discard([sum_])  # it was built for this sum alone
    return lifted


class _Bounds:
    """How far down masks go; what is found out is remembered."""

    def __init__(self) -> None:
        self._known: Answers[tuple[ir.Value | None, float], float | None] = Answers()

    def of(self, value: ir.Value, infinite: float = math.inf) -> float | None:
        """The largest magnitude that an element can have (see `bound`)."""
        return walk(_bound, (value, infinite), unknown=None, answers=self._known)

    def is_lifted(self, mask: ir.Value, guarded: bool) -> bool:
        """Whether a mask is as the kernel wants it."""
        how = depth_of(self.of(mask))
        if how is Depth.UNKNOWN and depth_of(computed_bound(mask, self.of)) is Depth.SHALLOW:
            return True
        finite = self.of(mask, infinite=0.0)
        return how is Depth.SHALLOW or (guarded and finite is not None and finite <= -FLOOR)

    def summand(self, total: ir.Value) -> tuple[ir.Node, ir.Value, ir.Value] | None:
        """The node of a sum of a mask and of small numbers, the mask, and the small numbers; None if it is none."""
        node = total.producer()
        if not is_op(node, "Add") or depth_of(self.of(total)) is not Depth.FINITE:
            return None
        for mask, other in (node.inputs, node.inputs[::-1]):
            small = None if other is None else self.of(other)
            if mask is not None and other is not None and small is not None and small <= NEGLIGIBLE:
                return node, mask, other
        return None


def _lifted_alone(bias: ir.Value, bounds: _Bounds, *, guarded: bool) -> ir.Value:
    if bounds.is_lifted(bias, guarded):
        return bias
    how = depth_of(bounds.of(bias))
    node = bias.producer()
    if how is Depth.FINITE and is_op(node, "Where"):
        condition, yes, no = inputs(node, 3)
        if is_constant(yes) and is_constant(no):
            lifted = ir.node("Where", [condition, _constant_lifted(yes), _constant_lifted(no)]).outputs[0]
            if not bias.uses():
                discard([node])  # it was built for this sum alone
            return lifted
    lowest = ir.node("Equal", [bias, constant(LOWEST)]).outputs[0]
    mask = ir.node("Where", [lowest, constant(FLOOR), bias]).outputs[0]
    if how is Depth.FINITE or guarded:
        return mask
    last = ir.node("ReduceMax", [bias, constant([-1])], {"keepdims": 1}).outputs[0]
    empty = ir.node("Equal", [last, constant(-math.inf)]).outputs[0]
    return ir.node("Where", [empty, constant(math.nan), mask]).outputs[0]


def _constant_lifted(value: ir.Value) -> ir.Value:
    content = array_of(value)
    lowest = content == np.float32(LOWEST)
    return constant(np.where(lowest, np.float32(FLOOR), content)) if lowest.any() else value

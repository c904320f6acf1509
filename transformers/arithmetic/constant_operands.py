"""Constants that are added, or multiplied, one after the other are one, and a 0 that only sums read needs no node."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.analysis.magnitudes import need_near
from ortopt.analysis.signs import has_one_zero
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    INTEGERS,
    Refusal,
    array_of,
    broadcasts_to,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    need,
    producer,
    tensor_of,
)
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded, Match, RewriteRule
from ortopt.semantics.opset_changes import BROADCASTS_FROM

SUMS, PRODUCTS = ("Add", "Sub"), ("Mul", "Div")
MIN_SHARE = 2.0**-11
"""A summand below this share of the other one would lose most of its digits in their sum."""

LARGEST = 1 << 16
"""Larger constants are not looked at for zeros: they are weights."""

LIMITS = {
    ir.DataType.FLOAT: (2.0**-126, 2.0**127),
    ir.DataType.DOUBLE: (2.0**-1022, 2.0**1023),
    ir.DataType.FLOAT16: (2.0**-14, 2.0**15),
    ir.DataType.BFLOAT16: (2.0**-126, 2.0**127),
}
"""Between these magnitudes every number has all its digits."""


class ConstantReassociation(RewriteRule[Match]):
    """``(x + a) + b`` → ``x + (a + b)``, ``(x * a) * b`` → ``x * (a * b)``, with ``-`` and, among floats, ``/`` too.

    Whole numbers wrap around, so their sums and products stay the same in any order. Floats must have one sign in a
    sum (``(x + 2²³) - 2²³`` rounds x), and no product may go away that would overflow or vanish long before what stays.
    """

    after = ("constant_folding", "noop_elimination")
    roots = (*SUMS, *PRODUCTS)
    opsets = (BROADCASTS_FROM, NEWEST_OPSET)
    numerics = Numerics.REORDERED
    lookback = 1

    def match(self, root: ir.Node) -> Match:
        """A constant, and below it another one of the same kind of arithmetic."""
        middle, outer, outer_first = _operands(root)
        inner_node = producer(
            middle, *(SUMS if root.op_type in SUMS else PRODUCTS), alone="the first result is used elsewhere"
        )
        need(inner_node.graph is root.graph, "it is computed in another graph", middle)
        x, inner, inner_first = _operands(inner_node)
        need(not is_constant(x), "both operands are constants", x)
        kind = dtype(x)
        need(kind in FLOATS or kind in INTEGERS, "it is no number", x)
        a, b = array_of(inner), array_of(outer)
        need(a.size > 0 and b.size > 0, "a constant is empty", inner)
        size = np.broadcast(a, b).size if _broadcasts(a, b) else 0
        need(0 < size <= max(a.size, b.size), "both constants together are larger", root)
        if root.op_type in SUMS:
            # root = ±(±x + a) + b
            flips = is_op(root, "Sub") and outer_first, is_op(inner_node, "Sub") and inner_first
            a = _negative(a) if is_op(inner_node, "Sub") and not inner_first else a
            b = _negative(b) if is_op(root, "Sub") and not outer_first else b
            total = constant(_sum(_negative(a) if flips[0] else a, b, kind), kind)
            reverse = flips[0] != flips[1]
            operands = ("Sub", [total, x]) if reverse else ("Add", [x, total])
            return Match((inner_node, root), lambda: ir.node(*operands))
        need(kind in FLOATS or (is_op(root, "Mul") and is_op(inner_node, "Mul")), "whole numbers divide with a rest", x)
        divides = is_op(root, "Div"), is_op(inner_node, "Div")
        need(not (divides[0] and outer_first) and not (divides[1] and inner_first), "x divides", x)
        product = constant(_product(a, b, divides, kind), kind)
        return Match((inner_node, root), lambda: ir.node("Mul", [x, product]))


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value, bool]:
    """The operand that is no constant, the constant, and whether the constant comes first."""
    a, b = inputs(node, 2)
    if is_constant(b):
        return a, b, False
    tensor_of(a)
    return b, a, True


def _broadcasts(a: np.ndarray, b: np.ndarray) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(size == other or 1 in (size, other) for size, other in pairs)


def _negative(a: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # the smallest whole number is its own negative
        negative: np.ndarray = np.negative(a)
    return negative


def _sum(a: np.ndarray, b: np.ndarray, kind: ir.DataType) -> np.ndarray:
    if kind in INTEGERS:
        with np.errstate(over="ignore"):
            total: np.ndarray = np.add(a, b, dtype=a.dtype)
        return total
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    total = np.asarray(wide_a + wide_b)
    large = np.maximum(np.abs(wide_a), np.abs(wide_b))
    small = np.minimum(np.abs(wide_a), np.abs(wide_b))
    need(bool(((wide_a * np.sign(wide_b)) > 0).all()), "the constants differ in sign: the first may round x", None)
    need(bool((small >= large * MIN_SHARE).all()), "one constant would be lost in the other", None)
    _check_range(total, kind)
    return total


def _product(a: np.ndarray, b: np.ndarray, divides: tuple[bool, bool], kind: ir.DataType) -> np.ndarray:
    if kind in INTEGERS:
        with np.errstate(over="ignore"):
            product: np.ndarray = np.multiply(a, b, dtype=a.dtype)
        return product
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        outer = 1 / b.astype(np.float64) if divides[0] else b.astype(np.float64)
        inner = 1 / a.astype(np.float64) if divides[1] else a.astype(np.float64)
        product = np.asarray(outer * inner)
    for factor in (outer, inner, product):
        _check_range(factor, kind)
    need_near(inner, (1.0, product), kind)
    return product


def _check_range(numbers: np.ndarray, kind: ir.DataType) -> None:
    """Refuse numbers that are not finite, or lose digits because they are near 0, in a type."""
    limits = LIMITS[kind]
    magnitudes = np.abs(numbers)
    fine = (magnitudes >= limits[0]) & (magnitudes <= limits[1])
    if not bool(fine.all()):
        raise Refusal("a constant would overflow or vanish")


class ZeroSummandElimination(Elimination):
    """``x + 0`` → ``x`` where both zeros count the same: programs write ``score = 0``, and then ``score = score + …``.

    Only where x is -0.0 is the result another zero: `noop_elimination`, which is exact, leaves the 0 there. The next
    sum, product of matrices, convolution or softmax makes no difference between them but in the sign of a zero of its
    own.
    """

    after = ("constant_folding", "constant_reassociation", "noop_elimination")
    roots = ("Add", "Sub")
    opsets = (BROADCASTS_FROM, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Forwarded:
        """A float and 0, of which nothing tells one zero from the other."""
        total = root.outputs[0]
        need(dtype(total) in FLOATS, "integers are another pass's", root)
        x, zero = inputs(root, 2)
        if is_op(root, "Add") and _is_zero(x):
            x, zero = zero, x
        need(_is_zero(zero), "it is not 0", zero)
        need(broadcasts_to(zero, dims(x)), "the 0 would enlarge the sum", zero)
        need(has_one_zero(total), "what reads the sum may tell 0.0 from -0.0", total)
        return Forwarded((root,), x)


def _is_zero(value: ir.Value) -> bool:
    return is_constant(value) and tensor_of(value).size <= LARGEST and not array_of(value).any()

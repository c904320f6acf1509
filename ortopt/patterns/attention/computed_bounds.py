"""How large a mask can become that is computed of normalized values, such as biases of relative positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import array_of, attribute, is_constant, is_op, optional
from ortopt.graph.walk import Question, walk

_MOVES: Final = frozenset(
    {"Expand", "Flatten", "Gather", "Identity", "Neg", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
_MAX_DEVIATION = 2.0 * math.sqrt(float(np.finfo(np.float32).max)) * 1.01
"""What a number differs from the mean at most, where its square is finite; else a normalization gives 0 or NaN. Its
variance, a difference of rounded numbers, may be 0 nevertheless, and epsilon all that it divides by."""

_ROUNDING = 1.01
"""Sums of rounded products are larger than the sum of the products by less."""

Bound: TypeAlias = "float | None"
_Asked: TypeAlias = "Question[ir.Value | None, Bound]"


def computed_bound(value: ir.Value, otherwise: Callable[[ir.Value], Bound]) -> Bound:
    """The largest magnitude that an element of single precision has, if it is not NaN; None if it is not known.

    Args:
        value: A value.
        otherwise: The bound of what is no product and no normalization; None if it is not known.
    """
    about: ir.Value | None = value
    return walk(partial(_bound, otherwise), about, unknown=None)


def _bound(otherwise: Callable[[ir.Value], Bound], value: ir.Value | None) -> _Asked:
    if value is None:
        return None
    node = value.producer()
    if node is None or node.domain or is_constant(value) or value.dtype != ir.DataType.FLOAT:
        return otherwise(value)
    if node.op_type in _MOVES:
        return (yield node.inputs[0])
    match node.op_type:
        case "Add" | "Sub":
            return _sum((yield node.inputs[0]), (yield node.inputs[1]))
        case "Mul":
            return _product((yield node.inputs[0]), (yield node.inputs[1]))
        case "Pad":
            filler = optional(node, 2)
            return _largest((yield node.inputs[0]), 0.0 if filler is None else (yield filler))
        case "MatMul" | "Gemm" | "Einsum":
            return (yield from _of_product(node))
        case "LayerNormalization":
            return (yield from _of_normalization(value, node))
    return otherwise(value)


def _of_product(node: ir.Node) -> _Asked:
    """A product with a constant: of each sum, at most everything that the constant holds along what is summed."""
    first, second, *rest = node.inputs
    if len(rest) > (node.op_type == "Gemm"):
        return None
    weight, other = _content(second), first
    is_second = weight is not None
    if weight is None:
        weight, other = _content(first), second
    summed = None if weight is None else _summed(node, is_second, weight.ndim)
    if weight is None or summed is None:
        return None
    factor = abs(attribute(node, "alpha", 1.0)) * _ROUNDING
    columns = float(np.abs(weight.astype(np.float64)).sum(axis=summed).max(initial=0.0))
    total = _product((yield other), columns * factor)
    if not rest or rest[0] is None:
        return total
    added = _product((yield rest[0]), abs(attribute(node, "beta", 1.0)))
    return _sum(total, added)


def _of_normalization(value: ir.Value, node: ir.Node) -> _Asked:
    epsilon = attribute(node, "epsilon", 1e-5)
    if value is not node.outputs[0] or not epsilon > 0:
        return None
    scaled = _product(_MAX_DEVIATION / math.sqrt(epsilon), (yield node.inputs[1]))
    bias = optional(node, 2)
    return scaled if bias is None else _sum(scaled, (yield bias))


def _content(value: ir.Value | None) -> np.ndarray | None:
    """What a constant holds, or a Transpose of one; None for another value."""
    if value is None or is_constant(value):
        return None if value is None else array_of(value)
    node = value.producer()
    source = node.inputs[0] if is_op(node, "Transpose") and node is not None else None
    if node is None or source is None or not is_constant(source):
        return None
    return np.transpose(array_of(source), ops.Transpose(node).order)


def _summed(node: ir.Node, is_second: bool, rank: int) -> tuple[int, ...] | None:
    """The axes of a constant operand along which a product sums; None if it sums along others of the other operand."""
    if rank < 2:
        return None
    if node.op_type == "MatMul":
        return (rank - 2,) if is_second else (rank - 1,)
    if node.op_type == "Gemm":
        transposed = ops.Gemm(node).transposes_b if is_second else ops.Gemm(node).transposes_a
        return (int(is_second == transposed),)
    operands, arrow, result = attribute(node, "equation", "").replace(" ", "").partition("->")
    terms = operands.split(",")
    if not arrow or "." in operands or len(terms) != 2:
        return None
    own, other = (terms[1], terms[0]) if is_second else (terms[0], terms[1])
    if len(own) != rank or not set(other) <= {*own, *result}:
        return None
    return tuple(place for place, name in enumerate(own) if name not in result)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else (one + other) * _ROUNDING


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other * _ROUNDING


def _largest(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)

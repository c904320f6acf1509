"""Relus with a slope where x is negative, spelled out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import (
    array_of,
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
    tensor_of,
)
from ortopt.patterns.clamp import zeros_have_no_sign
from ortopt.transformers.activation._threshold import threshold

ROOTS = ("Max", "Min", "Relu", "Where")
"""What one that is spelled out is found by."""

LOOKBACK = 3
"""How far above its root the pattern goes."""

NOT_SLOPED = "it is not x where x is positive, and a slope times x elsewhere"
LARGEST_SLOPE = 2.0**24


class SlopedRelu(Struct, frozen=True):
    """``x`` where it is positive, ``slope · x`` elsewhere.

    Attributes:
        nodes: The nodes that compute it.
        x: The value that it is computed from.
        slope: One number, or constants that broadcast to x.
        y: The result.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    slope: np.ndarray
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which may stand below the root."""
        return (self.y,)


def sloped_relu(root: ir.Node) -> SlopedRelu:
    """The Relu with a slope that a node is of.

    Args:
        root: One of `ROOTS`.

    Raises:
        Refusal: If it is none.
    """
    last = root
    match root.op_type:
        case "Max" | "Min":
            nodes, x, slope = _larger(root)
        case "Where":
            nodes, x, slope = _chosen(root)
        case _:
            last = only_user(root.outputs[0], "Add", "Sub")
            nodes, x, slope = _of_two_halves(root, last)
    need_float(x)
    need(bool(np.isfinite(slope).all()) and float(np.abs(slope).max()) <= LARGEST_SLOPE, "a slope is large", x)
    need(bool((slope > 0).all()), "a slope is not positive: zeros would have the other sign", x)
    return SlopedRelu((*nodes, last), x, slope, last.outputs[0])


Sloped = tuple[tuple[ir.Node, ...], ir.Value, np.ndarray]


def _times(node: ir.Node) -> tuple[ir.Value, np.ndarray]:
    """What a Mul multiplies by constants, and these, which keep its shape."""
    number, x = operand_constant(node)
    return x, _slope(number, x)


def _slope(number: ir.Value, x: ir.Value) -> np.ndarray:
    tensor = tensor_of(number)
    fits = keeps_rank(number, x) if tensor.size == 1 else broadcasts_to(number, dims(x))
    need(fits and tensor.size > 0, "the slope would enlarge the result", number)
    need(not is_constant(x), "all operands are constants", x)
    slope: np.ndarray = array_of(number).astype(np.float64)
    return slope


def _larger(root: ir.Node) -> Sloped:
    """``Max(x, a · x)`` for a up to 1, ``Min(x, a · x)`` from 1 on; at 0 an infinity would make a NaN."""
    product, other = operand_from(root, "Mul")
    x, slope = _times(product)
    need(x is other, NOT_SLOPED, other)
    fits = (slope > 0) & (slope <= 1) if is_op(root, "Max") else slope >= 1
    need(bool(fits.all()), "the slope is on the wrong side of 1", product)
    return (product,), x, slope


def _chosen(root: ir.Node) -> Sloped:
    """``Where(x > 0, x, a · x)``, the comparison in any form; a NaN makes one in any case."""
    comparison, left, right, x, sloped = threshold(root)
    need(left is x and is_scalar(right, 0.0) and keeps_rank(right, x), NOT_SLOPED, comparison)
    product = producer(sloped, "Mul")
    same, slope = _times(product)
    need(same is x, NOT_SLOPED, sloped)
    return (comparison, product), x, slope


def _of_two_halves(relu: ir.Node, total: ir.Node) -> Sloped:
    """``Relu(x) - a · Relu(-x)``, or plus with ``-a``, or ``Relu(x) + a · Min(x, 0)``."""
    a, b = inputs(total, 2)
    need(a is relu.outputs[0] or is_op(total, "Add"), NOT_SLOPED, total)
    product = producer(b if a is relu.outputs[0] else a, "Mul")
    (x,) = inputs(relu, 1)
    half, slope = _times(product)
    below, sign = _negative_half(half, x)
    need(sign < 0 or zeros_have_no_sign(x), "a zero would have the other sign", x)
    return (*below, relu, product), x, -sign * slope if is_op(total, "Sub") else sign * slope


def _negative_half(value: ir.Value, x: ir.Value) -> tuple[tuple[ir.Node, ...], int]:
    """The nodes of ``Relu(-x)`` and -1, or those of ``Min(x, 0)`` and 1."""
    node = producer(value, "Relu", "Min")
    if is_op(node, "Relu"):
        negation = producer(node.inputs[0], "Neg")
        need(inputs(negation, 1)[0] is x, NOT_SLOPED, negation)
        return (negation, node), -1
    need(len(node.inputs) == 2, NOT_SLOPED, node)
    a, b = inputs(node, 2)
    zero, other = (a, b) if is_constant(a) else (b, a)
    need(other is x and is_scalar(zero, 0.0) and keeps_rank(zero, x), NOT_SLOPED, node)
    return (node,), 1


__all__ = ["LARGEST_SLOPE", "LOOKBACK", "ROOTS", "SlopedRelu", "sloped_relu"]

"""Relus with a slope where x is negative: one number, or one for each channel.

Spelled out, they read x twice or more. A LeakyRelu is one kernel, and part of the convolution before it; the CPU's
kernel for a PRelu is slower than what it replaces.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    broadcasts_to,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    keeps_rank,
    need,
    need_float,
    only_user,
    operand_constant,
    operand_from,
    producer,
    splat,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.patterns.clamp import zeros_have_no_sign
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.transformers.activation._spelled import beside_zero, chosen_above_zero, other_operand

ROOTS = ("Max", "Min", "Relu", "Where")
"""What one that is spelled out is found by."""

NOT_SLOPED = "it is not x where x is positive, and a slope times x elsewhere"
LARGEST_SLOPE = 2.0**24


class SlopedRelu(Struct, frozen=True):
    """``x`` where it is positive, ``slope · x`` elsewhere.

    Attributes:
        nodes: The nodes that compute it, the one that gives the result last.
        x: The value that it is computed from.
        slope: One number, or constants that broadcast to x.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    slope: np.ndarray

    def as_op(self, op: str, *operands: ir.Value, **attributes: float) -> Match:
        """The match that replaces it by one op of x."""
        y = self.nodes[-1].outputs[0]
        return Match.ending_in(y, self.nodes, lambda: ir.node(op, [self.x, *operands], attributes))


class _SlopedReluFusion(RewriteRule[Match]):
    opsets = (9, NEWEST_OPSET)  # before, there was no Where, and PRelu did not broadcast
    lookback = 3
    looks_downstream = True
    numerics = Numerics.REORDERED


class LeakyReluFusion(_SlopedReluFusion):
    """``Max(x, a · x)`` → ``LeakyRelu<alpha = a>(x)``; so for Where, ``Relu(x) - a · Relu(-x)`` and ``PRelu(x, a)``."""

    after = ("constant_folding", "constant_reassociation", "not_where_fusion", "relu_fusion")
    roots = (*ROOTS, "PRelu")

    def match(self, root: ir.Node) -> Match:
        """A slope that is one number."""
        sloped = _of_prelu(root) if is_op(root, "PRelu") else _spelled(root)
        need(sloped.slope.size == 1, "the slope is not one number", sloped.x)
        need_single(sloped.x)
        return sloped.as_op("LeakyRelu", alpha=float(sloped.slope.reshape(-1)[0]))


class PreluFusion(_SlopedReluFusion):
    """``Max(x, A · x)`` → ``PRelu(x, A)`` for constants A; so for Where and for ``Relu(x) - A · Relu(-x)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding",)
    roots = ROOTS
    fuses = (("", "PRelu"),)

    def match(self, root: ir.Node) -> Match:
        """A slope for each channel: for one number see `leaky_relu_fusion`."""
        sloped = _spelled(root)
        need_single(sloped.x)
        need(sloped.slope.size > 1, "the slope is one number", sloped.x)
        return sloped.as_op("PRelu", constant(sloped.slope, dtype(sloped.x)))


def _of_prelu(root: ir.Node) -> SlopedRelu:
    """A PRelu whose slopes are all the same positive number: a zero keeps its sign then."""
    x, slopes = inputs(root, 2)
    slope = splat(slopes).astype(np.float64)
    need(0 < float(slope) <= LARGEST_SLOPE, "a slope is not positive, or large", slopes)
    return SlopedRelu((root,), x, slope)


def _spelled(root: ir.Node) -> SlopedRelu:
    """The Relu with a slope that one of `ROOTS` is of.

    Raises:
        Refusal: If it is none.
    """
    match root.op_type:
        case "Max" | "Min":
            sloped = _larger(root)
        case "Where":
            sloped = _chosen(root)
        case _:
            sloped = _of_two_halves(root)
    x, slope = sloped.x, sloped.slope
    need_float(x)
    need(bool(np.isfinite(slope).all()) and float(np.abs(slope).max()) <= LARGEST_SLOPE, "a slope is large", x)
    need(bool((slope > 0).all()), "a slope is not positive: zeros would have the other sign", x)
    return sloped


def _times(node: ir.Node) -> tuple[ir.Value, np.ndarray]:
    """What a Mul multiplies by constants, and these, which keep its shape."""
    number, x = operand_constant(node)
    tensor = tensor_of(number)
    fits = keeps_rank(number, x) if tensor.size == 1 else broadcasts_to(number, dims(x))
    need(fits and tensor.size > 0, "the slope would enlarge the result", number)
    need(not is_constant(x), "all operands are constants", x)
    return x, array_of(number).astype(np.float64)


def _larger(root: ir.Node) -> SlopedRelu:
    """``Max(x, a · x)`` for a up to 1, ``Min(x, a · x)`` from 1 on; at 0 an infinity would make a NaN."""
    product, other = operand_from(root, "Mul")
    x, slope = _times(product)
    need(x is other, NOT_SLOPED, other)
    fits = (slope > 0) & (slope <= 1) if is_op(root, "Max") else slope >= 1
    need(bool(fits.all()), "the slope is on the wrong side of 1", product)
    return SlopedRelu((product, root), x, slope)


def _chosen(root: ir.Node) -> SlopedRelu:
    """``Where(x > 0, x, a · x)``, the comparison in any form; a NaN makes one in any case."""
    comparison, x, sloped = chosen_above_zero(root, NOT_SLOPED)
    product = producer(sloped, "Mul")
    same, slope = _times(product)
    need(same is x, NOT_SLOPED, sloped)
    return SlopedRelu((comparison, product, root), x, slope)


def _of_two_halves(relu: ir.Node) -> SlopedRelu:
    """``Relu(x) - a · Relu(-x)``, or plus with ``-a``, or ``Relu(x) + a · Min(x, 0)``."""
    total = only_user(relu.outputs[0], "Add", "Sub")
    need(inputs(total, 2)[0] is relu.outputs[0] or is_op(total, "Add"), NOT_SLOPED, total)
    product = producer(other_operand(total, relu.outputs[0]), "Mul")
    (x,) = inputs(relu, 1)
    half, slope = _times(product)
    below, sign = _negative_half(half, x)
    need(sign < 0 or zeros_have_no_sign(x), "a zero would have the other sign", x)
    slope = -sign * slope if is_op(total, "Sub") else sign * slope
    return SlopedRelu((*below, relu, product, total), x, slope)


def _negative_half(value: ir.Value, x: ir.Value) -> tuple[tuple[ir.Node, ...], int]:
    """The nodes of ``Relu(-x)`` and -1, or those of ``Min(x, 0)`` and 1."""
    node = producer(value, "Relu", "Min")
    if is_op(node, "Min"):
        need(beside_zero(node, NOT_SLOPED) is x, NOT_SLOPED, node)
        return (node,), 1
    negation = producer(node.inputs[0], "Neg")
    need(inputs(negation, 1)[0] is x, NOT_SLOPED, negation)
    return (negation, node), -1

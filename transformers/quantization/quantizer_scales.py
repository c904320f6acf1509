"""A constant factor before a QuantizeLinear, or behind a DequantizeLinear, can be part of its scale."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    inputs,
    is_constant,
    keeps_rank,
    need,
    need_float32,
    only_user,
    plain_attributes,
    producer,
    scalar,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.quantization import DEQUANTIZE, dequantizer, is_faithful, is_quantizer, need_no_other_sign, scaling
from ortopt.patterns.quantized_kernels import QUANTIZERS
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

FACTORS = (2.0**-20, 2.0**20)
"""Between these, neither the product nor the new scale overflows or loses digits."""


class QuantizeScaleFolding(RewriteRule[Match]):
    """``QuantizeLinear(x · c, s)`` → ``QuantizeLinear(x, s / c)``. So for ``x / c``.

    Where x / (s / c) lies in the middle between two integers, it may be rounded to the neighbour.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("qdq_propagation",)
    roots = QUANTIZERS
    numerics = Numerics.QUANTIZED
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """A product by a constant that nothing else reads."""
        plain_attributes(root)
        (numbers,) = inputs(root, 1)
        product = producer(numbers, "Div", "Mul")
        only_user(numbers)
        x, factor = _factor_of(product)
        scale = _with_factor(root, factor, multiplied=product.op_type == "Div")
        need_no_other_sign(root, scaling(root).integers)
        return Match((product, root), lambda: _with_scale(root, x, scale))


class DequantizeScaleFolding(RewriteRule[Match]):
    """``DequantizeLinear(q, s) · c`` → ``DequantizeLinear(q, s · c)``. So for ``/ c``.

    The division by √2 of a Gelu that is spelled out is one. It costs as much as the DequantizeLinear does: both are as
    fast as memory takes the floats. Where others read the floats, a DequantizeLinear of its own stands for the product.
    """

    levels = (TransformerLevel.LEVEL3,)  # what fuses a Gelu or an attention of floats looks for its factor before
    roots = ("Div", "Mul")
    numerics = Numerics.QUANTIZED
    produces = ((MICROSOFT, DEQUANTIZE),)  # where the model has it
    fuses = ()
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """A product of dequantized integers by a constant number."""
        numbers, factor = _factor_of(root)
        dequantize = dequantizer(numbers)
        plain_attributes(dequantize)
        scale = _with_factor(dequantize, factor, multiplied=root.op_type == "Mul")
        (integers,) = inputs(dequantize, 1)
        need(not is_constant(integers), "it will be folded", integers)
        if is_quantizer(integers.producer()):
            need_no_other_sign(root, integers.dtype)
        return Match((root,), lambda: _with_scale(dequantize, dequantize.inputs[0], scale))


def _factor_of(product: ir.Node) -> tuple[ir.Value, float]:
    """What a Mul multiplies by a constant number, or a Div divides by one; and the number.

    Raises:
        Refusal: If there is no such number, or a scale cannot take it in.
    """
    plain_attributes(product)
    x, other = inputs(product, 2)
    if product.op_type == "Mul" and is_constant(x):
        x, other = other, x
    factor = scalar(other)
    need(keeps_rank(other, x), "the factor would raise the rank", other)
    need(FACTORS[0] <= factor <= FACTORS[1], "the factor is negative, zero, very small or very large", other)
    return x, factor


def _with_factor(quantizer: ir.Node, factor: float, *, multiplied: bool) -> np.ndarray:
    """The one scale of a QuantizeLinear or DequantizeLinear, with a factor in it.

    Args:
        quantizer: The node.
        factor: The factor (see `_factor_of`).
        multiplied: Whether the scale is multiplied by it, or divided.

    Raises:
        Refusal: If there are several scales, or it is not exact.
    """
    mapping = scaling(quantizer)
    need_float32(inputs(quantizer, 2)[1])
    need(mapping.scale.ndim == 0, "there are several scales", quantizer)
    need(is_faithful(mapping), "the scale is too large or too small to be exact", quantizer)
    scale = np.float64(mapping.scale)
    return np.array(scale * factor if multiplied else scale / factor, np.float32)


def _with_scale(quantizer: ir.Node, x: ir.Value | None, scale: np.ndarray) -> ir.Node:
    """A QuantizeLinear or DequantizeLinear of something else, by another scale."""
    return ops.copied(quantizer, [x, constant(scale), *quantizer.inputs[2:]])

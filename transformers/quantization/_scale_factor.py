"""Constant factors that become part of the one scale of a quantizer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import inputs, is_constant, keeps_rank, need, need_float32, plain_attributes, scalar
from ortopt.patterns.quantization import is_faithful, scaling

FACTORS = (2.0**-20, 2.0**20)
"""Between these, neither the product nor the new scale overflows or loses digits."""


def factor_of(product: ir.Node) -> tuple[ir.Value, float]:
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


def with_factor(quantizer: ir.Node, factor: float, *, multiplied: bool) -> np.ndarray:
    """The one scale of a QuantizeLinear or DequantizeLinear, with a factor in it.

    Args:
        quantizer: The node.
        factor: The factor (see `factor_of`).
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


__all__ = ["factor_of", "with_factor"]

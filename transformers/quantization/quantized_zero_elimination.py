"""A bias that is quantized, and zero throughout, adds nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import (
    FLOAT,
    Refusal,
    array_of,
    broadcasts_to,
    dims,
    dtype,
    inputs,
    is_constant,
    need,
    need_float32,
    optional,
    tensor_of,
)
from ortopt.patterns.quantization import is_dequantizer, is_quantized
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded

LARGEST = 1 << 16
"""Larger constants are not read: they are weights."""

TINY = np.finfo(np.float32).tiny


class QuantizedZeroElimination(Elimination):
    """``x + DequantizeLinear(0)`` → ``x``, where x is dequantized too, or the sum is quantized.

    The zeros are +0.0, which changes -0.0 alone: what is dequantized holds none, and both are quantized alike.
    """

    roots = ("Add",)
    needs = ("DequantizeLinear", "com.microsoft::DequantizeLinear")
    opsets = (10, NEWEST_OPSET)  # the first with DequantizeLinear

    def match(self, root: ir.Node) -> Forwarded:
        """A sum with dequantized zeros that do not enlarge it."""
        a, b = inputs(root, 2)
        zeros, x = (a, b) if _is_dequantized_zero(a) else (b, a)
        need(_is_dequantized_zero(zeros), "no operand is dequantized from zeros", root)
        need_float32(x)
        need(broadcasts_to(zeros, dims(x)), "the zeros may enlarge the result", zeros)
        need(is_quantized(root.outputs[0]) or _is_dequantized(x), "x may hold -0.0", x)
        return Forwarded((root,), x)


def _is_dequantized(value: ir.Value) -> bool:
    """Whether elements come from integers by scales that are constant, positive and normal."""
    node = value.producer()
    if node is None or not is_dequantizer(node):
        return False
    scale = inputs(node, 2)[1]
    if value.dtype != FLOAT or not is_constant(scale) or not dtype(inputs(node, 1)[0]).is_integer():
        return False
    numbers = array_of(scale).astype(np.float32)
    return bool((np.isfinite(numbers) & (numbers >= TINY)).all())


def _is_dequantized_zero(value: ir.Value) -> bool:
    """Whether all elements are dequantized from the integer that stands for 0."""
    node = value.producer()
    if node is None or not _is_dequantized(value):
        return False
    integers, zero_point = inputs(node, 1)[0], optional(node, 2)
    try:
        if not is_constant(integers) or tensor_of(integers).size > LARGEST:
            return False
        content = array_of(integers)
        middle = np.zeros(1) if zero_point is None else array_of(zero_point).reshape(-1)
    except Refusal:
        return False
    return middle.size > 0 and bool((middle == middle[0]).all() and (content == middle[0]).all())

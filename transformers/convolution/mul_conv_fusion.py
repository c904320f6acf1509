"""A constant factor for each channel of what goes into a convolution can be in its weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_near
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    dtype,
    inputs,
    is_op,
    is_used_once,
    need,
    need_float,
    operand_constant,
    optional,
    plain_attributes,
    producer,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.channels import of_input_channels
from ortopt.rule import NEWEST_OPSET, RewriteRule

MAX_BYTES = 1 << 25
"""Larger weights stay mapped from the file: a scaled copy would be in memory."""


class Found(Struct, frozen=True):
    """The scaling node and the convolution, what is scaled, and the new weights."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weight: np.ndarray


class MulConvFusion(RewriteRule[Found]):
    """``Conv(x * c, W, b)`` → ``Conv(x, W * c, b)``, also ``/ c``: padding is 0 in both.

    It runs at level 2, because at level 1 the factor may still be part of an activation that another pass recognises.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "fast_gelu_fusion", "gelu_fusion", "opset_conversion", "quick_gelu_fusion")
    roots = ("Conv",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand of Mul broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A constant that differs along the channels only, and constant weights that nothing else needs."""
        scaled, weight = inputs(root, 2)
        scaling = producer(scaled, "Mul", "Div")
        number, x = operand_constant(scaling) if is_op(scaling, "Mul") else inputs(scaling, 2)[::-1]
        tensor_of(number)
        plain_attributes(root)
        need_float(x)
        tensor = tensor_of(weight)
        need(is_used_once(weight) and tensor.nbytes <= MAX_BYTES, "the weights are large, or used elsewhere", weight)
        content = array_of(weight)
        factors = of_input_channels(number, root, x)
        need(bool((factors != 0).all()), "a factor is 0", number)
        if is_op(scaling, "Div"):
            factors = 1 / factors
        need_near(1.0, (np.abs(factors),), dtype(x), number)
        return Found((scaling, root), x, _scaled(content, factors, ops.Conv(root).group, weight))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution."""
        convolution = found.nodes[-1]
        weight = constant(found.weight, tensor_of(convolution.inputs[1]).dtype)
        bias = optional(convolution, 2)
        operands = [found.x, weight, *([] if bias is None else [bias])]
        return ir.Node("", "Conv", operands, list(convolution.attributes.values()))


def _scaled(weight: np.ndarray, factors: np.ndarray, group: int, about: ir.Value) -> np.ndarray:
    """Weights with the factors of their input channels, if none overflows or loses digits."""
    outputs, inner, *kernel = weight.shape
    by_group = weight.astype(np.float64).reshape(group, outputs // group, inner, *kernel)
    product = by_group * factors.reshape(group, 1, inner, *(1,) * len(kernel))
    with np.errstate(over="ignore"):
        rounded = np.asarray(product.astype(weight.dtype)).reshape(weight.shape)
    wide = np.abs(rounded.astype(np.float64))
    smallest = 2.0**-14 if weight.dtype.itemsize == 2 else 2.0**-126
    fine = np.isfinite(wide) & ((wide >= smallest) | (weight.astype(np.float64) == 0))
    need(bool(fine.all()), "a weight would overflow or vanish", about)
    return rounded

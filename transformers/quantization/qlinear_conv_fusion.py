"""A convolution between DequantizeLinear and QuantizeLinear can count in integers of 8 bits."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import inputs, need, optional, plain_attributes, static_dims
from ortopt.patterns.quantized_kernels import (
    KernelCall,
    Product,
    UnitFusion,
    bias_input,
    check_weight,
    operand,
    result,
    unit_before,
)


class QlinearConvFusion(UnitFusion):
    """``Quantize(Conv(Dequantize(x), Dequantize(w), b))`` → ``QLinearConv(x, w, b)``.

    A bias that is not in the kernel's units is rounded to them, where that is little of the result's step.
    """

    fuses = (("", "QLinearConv"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A convolution by a constant weight of 8 bits."""
        convolution = unit_before(root, "Conv")
        y = result(root)
        attributes = plain_attributes(convolution)
        x_floats, w_floats = inputs(convolution, 2)
        x, weight = operand(x_floats), operand(w_floats, channels=True)
        check_weight(weight)
        scales = weight.mapping.scale
        need(scales.ndim == 0 or weight.mapping.axis == 0, "the scales are not those of channels", w_floats)
        channels, *kernel = static_dims(weight.integers)
        unit = x.step * scales.astype(np.float64)
        bias = bias_input(optional(convolution, 2), Product(math.prod(kernel), unit, channels, y.step))
        operands = [*x.triple, *weight.triple, y.scale, y.zero_point, *([] if bias is None else [bias])]
        return KernelCall((convolution, root), "QLinearConv", operands, tuple(attributes.values()), domain="")

"""A Gemm between DequantizeLinear and QuantizeLinear can count in integers of 8 bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
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
from ortopt.semantics.domains import MICROSOFT


class QgemmFusion(UnitFusion):
    """``Quantize(Gemm(Dequantize(a), Dequantize(b), c))`` → ``com.microsoft.QGemm(a, b, c)``.

    A bias that is not in the kernel's units is rounded to them, where that is little of the result's step.
    """

    produces = ((MICROSOFT, "QGemm"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A Gemm by a constant weight of 8 bits."""
        gemm = unit_before(root, "Gemm")
        y = result(root)
        read, attributes = ops.Gemm(gemm), plain_attributes(gemm).values()
        a_floats, b_floats = inputs(gemm, 2)
        a, weight = operand(a_floats), operand(b_floats, channels=True)
        check_weight(weight)
        columns = 0 if read.transposes_b else 1
        scales = weight.mapping.scale
        need(scales.ndim == 0 or weight.mapping.axis == columns, "the scales are not those of columns", b_floats)
        c = optional(gemm, 2)
        need(c is None or read.beta == 1.0, "the bias is scaled", gemm)
        sizes = static_dims(weight.integers, 2)
        need(sizes[1 - columns] > 0, "the kernel leaves the sum of nothing undefined", weight.integers)
        need(read.alpha > 0, "alpha is not positive", gemm)
        unit = np.float64(read.alpha) * a.step * scales.astype(np.float64)
        bias = bias_input(c, Product(sizes[1 - columns], unit, sizes[columns], y.step))
        operands = (*a.triple, *weight.triple, bias, y.scale, y.zero_point)
        return KernelCall((gemm, root), "QGemm", operands, tuple(ops.changed(attributes, beta=None)))

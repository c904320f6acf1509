"""A product of matrices between DequantizeLinear and QuantizeLinear can count in integers of 8 bits."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import inputs, need, rank
from ortopt.patterns.quantized_kernels import (
    KernelCall,
    UnitFusion,
    check_columns,
    operand,
    result,
    terms_of,
    unit_before,
)


class QlinearMatmulFusion(UnitFusion):
    """``Quantize(MatMul(Dequantize(a), Dequantize(b)))`` → ``QLinearMatMul(a, b)``."""

    fuses = (("", "QLinearMatMul"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A product of two operands of 8 bits, the second perhaps with a scale for each column."""
        product = unit_before(root, "MatMul")
        y = result(root)
        a_floats, b_floats = inputs(product, 2)
        a, b = operand(a_floats), operand(b_floats, channels=True)
        need(rank(a.integers) >= 2 and rank(b.integers) >= 2, "an operand is a vector", product)
        check_columns(b)
        terms_of(a.integers, b.integers)
        operands = (*a.triple, *b.triple, y.scale, y.zero_point)
        return KernelCall((product, root), "QLinearMatMul", operands, domain="")

"""A choice between dequantized values that are quantized again can be made between integers."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import inputs
from ortopt.options import Numerics
from ortopt.patterns.quantized_kernels import KernelCall, UnitFusion, check_same_type, operand, result, unit_before
from ortopt.semantics.domains import MICROSOFT


class QlinearWhereFusion(UnitFusion):
    """``Quantize(Where(c, Dequantize(a), Dequantize(b)))`` → ``com.microsoft.QLinearWhere(c, a, b)``.

    Exact: the kernel maps each of the 256 integers as the unit does.
    """

    numerics = Numerics.EXACT
    produces = ((MICROSOFT, "QLinearWhere"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A Where of two dequantized operands."""
        where = unit_before(root, "Where")
        y = result(root)
        condition, left, right = inputs(where, 3)
        a, b = operand(left), operand(right)
        check_same_type(a, b, y)
        operands = (condition, *a.triple, *b.triple, y.scale, y.zero_point)
        return KernelCall((where, root), "QLinearWhere", operands)

"""A product of integers can become floats, and get its bias, while it is in a register."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.integer_products import IntegerProduct, integer_product
from ortopt.patterns.quantization import MICROSOFT
from ortopt.rule import RewriteRule


class MatmulIntegerToFloatFusion(RewriteRule[IntegerProduct]):
    """``Cast(MatMulInteger(a, b)) · (s · t) + c`` → ``com.microsoft.MatMulIntegerToFloat(a, b, s, t, c)``.

    Without a bias, too.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("dynamic_quantize_matmul_fusion",)
    roots = ("Mul",)
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "MatMulIntegerToFloat"),)

    def match(self, root: ir.Node) -> IntegerProduct:
        """A product of integers by the product of their scales."""
        return integer_product(root)

    def rewrite(self, found: IntegerProduct) -> dict[ir.Value, ir.Value]:
        """Build the kernel's node."""
        operands = [found.a, found.b, found.a_scale, found.b_scale, found.a_zero_point, found.b_zero_point, found.bias]
        while operands[-1] is None:
            operands.pop()
        return {found.y: ir.Node(MICROSOFT, "MatMulIntegerToFloat", operands).outputs[0]}

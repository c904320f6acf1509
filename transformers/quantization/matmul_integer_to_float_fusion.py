"""A product of integers can become floats, and get its bias, while it is in a register."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import dims, inputs, need, plain_attributes, rank
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.quantization import is_quantizer
from ortopt.patterns.quantized_kernels import check_columns, operand, terms_of
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._integer_products import IntegerProduct, bias_behind, integer_product, unless_zero


class MatmulIntegerToFloatFusion(RewriteRule[IntegerProduct]):
    """``Cast(MatMulInteger(a, b)) · (s · t) + c`` → ``com.microsoft.MatMulIntegerToFloat(a, b, s, t, c)``.

    So for ``MatMul(DequantizeLinear(a), DequantizeLinear(b))`` whose result stays float. Without a bias, too.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("dynamic_quantize_matmul_fusion", "qdq_propagation")
    roots = ("MatMul", "Mul")
    needs = ("MatMulInteger", "DequantizeLinear", "com.microsoft::DequantizeLinear")
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "MatMulIntegerToFloat"),)

    def match(self, root: ir.Node) -> IntegerProduct:
        """A product of integers by the product of their scales, or of what is dequantized."""
        return integer_product(root) if root.op_type == "Mul" else _dequantized_product(root)

    def rewrite(self, found: IntegerProduct) -> dict[ir.Value, ir.Value]:
        """Build the kernel's node."""
        operands = [found.a, found.b, found.a_scale, found.b_scale, found.a_zero_point, found.b_zero_point, found.bias]
        while operands[-1] is None:
            operands.pop()
        return {found.y: ir.Node(MICROSOFT, "MatMulIntegerToFloat", operands).outputs[0]}


def _dequantized_product(root: ir.Node) -> IntegerProduct:
    """The product of two operands that are dequantized from 8 bits."""
    plain_attributes(root)
    left, right = inputs(root, 2)
    a, b = operand(left), operand(right, channels=True)
    need(rank(a.integers) >= 2 and rank(b.integers) >= 2, "an operand is a vector", root)
    check_columns(b)
    terms_of(a.integers, b.integers)
    quantized = any(is_quantizer(use.node) for use in root.outputs[0].uses())
    need(not quantized, "a kernel can quantize the result as well", root)
    addition, bias = bias_behind(root.outputs[0], dims(b.integers)[-1])
    nodes = (root,) if addition is None else (root, addition)
    y = nodes[-1].outputs[0]
    zero = unless_zero(b.given_zero)
    return IntegerProduct(nodes, a.integers, b.integers, a.scale, b.scale, a.given_zero, zero, bias, y)

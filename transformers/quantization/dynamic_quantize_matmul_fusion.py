"""Floats that only one product of integers needs quantized can be quantized in its kernel."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import inputs, is_op, is_used_once, need, need_present
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._integer_products import IntegerProduct, integer_product


class Found(Struct, frozen=True):
    """The nodes, the product, and the floats that are quantized for it."""

    nodes: tuple[ir.Node, ...]
    product: IntegerProduct
    x: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which may stand below the root."""
        return self.product.replaced


class DynamicQuantizeMatmulFusion(RewriteRule[Found]):
    """``Cast(MatMulInteger(q, b, z)) · (s · t) + c`` → ``com.microsoft.DynamicQuantizeMatMul(x, b, t, c)``.

    Here q, s and z are what DynamicQuantizeLinear gives of x. Without a bias, too. Where several products read the
    quantized floats, they are quantized once, and stay.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Mul",)
    lookback = 4
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "DynamicQuantizeMatMul"),)

    def match(self, root: ir.Node) -> Found:
        """A product of integers whose first operand is quantized for it alone."""
        product = integer_product(root)
        quantize = product.a.producer()
        need_present(is_op(quantize, "DynamicQuantizeLinear"), "no DynamicQuantizeLinear comes before", product.a)
        assert quantize is not None
        _, scale, zero_point = quantize.outputs
        own = product.a_scale is scale and product.a_zero_point is zero_point
        need(own, "the scale and the zero point are others", quantize)
        alone = all(is_used_once(value) and not value.is_graph_output() for value in quantize.outputs)
        need(alone, "others read the quantized floats", quantize)
        scales = next(use.node for use in scale.uses())
        need(is_used_once(scales.outputs[0]), "others read the product of the scales", scales)
        return Found((quantize, scales, *product.nodes), product, inputs(quantize, 1)[0])

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the kernel's node."""
        product = found.product
        operands = [found.x, product.b, product.b_scale, product.b_zero_point, product.bias]
        while operands[-1] is None:
            operands.pop()
        return {product.y: ir.Node(MICROSOFT, "DynamicQuantizeMatMul", operands).outputs[0]}

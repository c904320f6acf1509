"""ONNX Runtime makes slow kernels of integers of two kinds of quantized units when it loads a model.

Its QLinearSoftmax looks each exponential up and divides one element after the other, and its QLinearAveragePool turns
integers into floats and back for itself: both take longer than the ops on floats. It knows a unit by
its DequantizeLinear and QuantizeLinear, right beside the op. A Sum of one operand between them is a copy.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import preferred
from ortopt.graph.match import dims, dtype, inputs, need, need_float32, need_present, only_user
from ortopt.graph.symbolic import product
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.quantization import dequantizer, is_quantizer
from ortopt.patterns.quantized_kernels import BYTES
from ortopt.rule import Match, RewriteRule

APART = "apart from its quantization"
"""The variant of both ops in the table of costs."""


class UnitSumConversion(RewriteRule[Match]):
    """``Quantize(Softmax(Dequantize(q)))`` → ``Quantize(Softmax(Sum(Dequantize(q))))``, which stays in floats.

    So for AveragePool, whose result is the smaller: it goes through the Sum. The result is exact.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("AveragePool", "Softmax")
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = tuple(Form("", op, APART) for op in roots)

    def match(self, root: ir.Node) -> Match:
        """An op between 8-bit integers of one type."""
        (numbers,) = inputs(root, 1)
        dequantize = dequantizer(numbers)
        quantize = only_user(root.outputs[0])
        need_present(is_quantizer(quantize), "no QuantizeLinear comes after", quantize)
        need_float32(numbers)
        before, after = dtype(inputs(dequantize, 1)[0]), dtype(quantize.outputs[0])
        need(before in BYTES and before == after, "ONNX Runtime has no kernel of these integers", root)
        preferred(root, [Form("", root.op_type, APART)], {"elements": product(dims(numbers))})
        if root.op_type == "AveragePool":
            return Match((root,), lambda: ir.node("Sum", ops.copied(root, root.inputs).outputs))
        return Match((root,), lambda: ops.copied(root, ir.node("Sum", [numbers]).outputs))

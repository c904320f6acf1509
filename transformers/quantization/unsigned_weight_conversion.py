"""Processors with AVX2 and without VNNI saturate sums of unsigned times signed bytes; unsigned weights are exact."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import array_of, inputs, is_constant, need, optional, plain_attributes
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.quantization import need_native, with_unsigned
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.system import processor

SMALL = 64
"""Two products of a byte and a weight of no more than this stay within 16 bits with a sign."""

WEIGHTS = {
    ("", "MatMulInteger"): ((1, 3),),
    ("", "QLinearConv"): ((3, 5),),
    ("", "QLinearMatMul"): ((3, 5),),
    (MICROSOFT, "DynamicQuantizeLSTM"): ((1, 9), (2, 11)),
    (MICROSOFT, "DynamicQuantizeMatMul"): ((1, 3),),
    (MICROSOFT, "MatMulIntegerToFloat"): ((1, 5),),
    (MICROSOFT, "QAttention"): ((1, 7),),
    (MICROSOFT, "QGemm"): ((3, 5),),
}
"""Where a kernel reads weights, and the zero point of each."""

ROOTS = tuple(op if not domain else f"{domain}::{op}" for domain, op in WEIGHTS)


class UnsignedWeightConversion(RewriteRule[Match]):
    """``QLinearConv(x, w)`` by int8 weights → by uint8, with zero points that are 128 more.

    So for all quantized kernels that multiply. Exact: the same numbers have other names. With ``--march native``
    only, and only on x86 processors with AVX2 and without VNNI: there two products of unsigned and signed bytes are
    added in 16 bits and saturate, so that results may be wrong where weights are beyond ±64. Kernels of unsigned
    weights are slower, and right. (ONNX Runtime does the same if ``session.x64quantprecision`` is set.)
    """

    levels = (TransformerLevel.LEVEL2,)
    after = (
        *("dynamic_quantize_matmul_fusion", "matmul_integer_to_float_fusion", "qgemm_fusion", "qlinear_conv_fusion"),
        *("qlinear_matmul_fusion", "unsigned_quantization_conversion"),
    )
    roots = ROOTS
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """Constant weights of int8, at least one of them beyond what the processor adds exactly."""
        need_native(root, "for some processors only")
        need(processor.saturates_products(), "this processor adds products of bytes without saturation", root)
        plain_attributes(root)
        inputs(root, 1)
        large = False
        for index, zero_index in WEIGHTS[root.domain, root.op_type]:
            weight, zero = optional(root, index), optional(root, zero_index)
            signed = weight is not None and weight.dtype == ir.DataType.INT8 and is_constant(weight)
            need(signed, "the weight is no constant of int8", root)
            need(zero is None or is_constant(zero), "the weight's zero point is computed", root)
            assert weight is not None
            large = large or bool(np.any(np.abs(array_of(weight).astype(np.int16)) > SMALL))
        need(large, "the weights are so small that no sum saturates", root)
        return Match((root,), lambda: with_unsigned(root, WEIGHTS[root.domain, root.op_type]))

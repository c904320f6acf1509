"""No kernel takes quantized parameters of a normalization: they are dequantized in each run, or once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    need,
    optional,
    plain_attributes,
    tensor_of,
)
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics import key
from ortopt.semantics.domains import MICROSOFT

LARGEST = 1 << 16
"""How many elements a parameter may have, which grows to four times its size."""

INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32)

NORMALIZATIONS = {
    ("", "BatchNormalization"),
    ("", "GroupNormalization"),
    ("", "InstanceNormalization"),
    ("", "LayerNormalization"),
    ("", "RMSNormalization"),
    ("", "SimplifiedLayerNormalization"),
    (MICROSOFT, "SkipLayerNormalization"),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"),
}


class DequantizedParameterFolding(RewriteRule[Match]):
    """``LayerNormalization(x, DequantizeLinear(w), …)`` → ``LayerNormalization(x, w', …)`` for a constant w.

    So for all normalizations, where nothing else reads what is dequantized. The numbers are the same.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("DequantizeLinear",)
    opsets = (10, NEWEST_OPSET)
    looks_downstream = True
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """Constant integers of moderate size, by constant scales, that only normalizations read."""
        result, (integers, scale) = root.outputs[0], inputs(root, 2)
        zero_point = optional(root, 2)
        operands = [value for value in (integers, scale, zero_point) if value is not None]
        need(all(map(is_constant, operands)), "it is not constant", root)
        need(set(plain_attributes(root)) <= {"axis"}, "it dequantizes in blocks, or in a precision of its own", root)
        need(dtype(integers) in INTEGERS and dtype(result) == dtype(scale) == FLOAT, "it has other types", root)
        need(tensor_of(integers).size <= LARGEST, "it is large", integers)
        alone = tensor_of(scale).size == 1 or (len(dims(integers)) == 1 and dims(scale) == dims(integers))
        fits = zero_point is None or tensor_of(zero_point).size == tensor_of(scale).size
        need(alone and fits, "it has several scales, and several axes", root)
        uses = list(result.uses())
        need(bool(uses) and not result.is_graph_output(), "it is a result", root)
        for use in uses:
            need(key(use.node) in NORMALIZATIONS and use.idx > 0, "others than normalizations read it", use.node)
        return Match((root,), lambda: _dequantized(integers, scale, zero_point))


def _dequantized(integers: ir.Value, scale: ir.Value, zero_point: ir.Value | None) -> ir.Value:
    """Dequantize as the kernel does: the difference of integers is rounded to a float, and the product."""
    content = array_of(integers).astype(np.int64)
    if zero_point is not None:
        zeros = array_of(zero_point).astype(np.int64)
        content = content - (zeros.reshape(-1)[0] if zeros.size == 1 else zeros)
    scales = array_of(scale).astype(np.float32)
    factor = scales.reshape(-1)[0] if scales.size == 1 else scales
    return constant(np.asarray(content.astype(np.float32) * factor, np.float32))

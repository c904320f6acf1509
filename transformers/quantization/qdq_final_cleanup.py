"""Dequantizing an integer and quantizing it to the same integer again can be left out."""

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import inputs, need
from ortopt.options import TransformerLevel
from ortopt.patterns.quantization import dequantizer, is_faithful, same_scale, scaling
from ortopt.rule import Elimination, Forwarded


class QdqFinalCleanup(Elimination):
    """``QuantizeLinear(DequantizeLinear(q))`` with one scale and zero point → ``q``.

    The result is exact: see `ortopt.patterns.quantization.FAITHFUL`. ``DequantizeLinear(QuantizeLinear(x))`` always
    stays, because its rounding and saturation belong to the model. ONNX Runtime removes it on request.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("QuantizeLinear", "com.microsoft::QuantizeLinear")

    def match(self, root: ir.Node) -> Forwarded:
        """The same constant mapping on the way there and back."""
        dequantize = dequantizer(inputs(root, 1)[0])
        there, back = scaling(dequantize), scaling(root)
        need(there.integers == back.integers, "the quantized types differ", root)
        need(same_scale(there, back), "the scales differ: it rounds", root)
        need(bool(np.array_equal(there.zero_point, back.zero_point)), "the zero points differ", root)
        need(is_faithful(there), "the scale is too large or too small for the way back to be exact", root)
        return Forwarded((root,), inputs(dequantize, 1)[0])

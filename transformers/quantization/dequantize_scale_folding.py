"""A constant factor behind a DequantizeLinear can be part of its scale."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, inputs, is_constant, need, plain_attributes
from ortopt.options import March, Numerics, Target, TransformerLevel
from ortopt.patterns.quantization import DEQUANTIZE, dequantizer, is_quantizer
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._scale_factor import factor_of, with_factor


class Found(Struct, frozen=True):
    """The product, the DequantizeLinear before it, which may have other readers, and the new scale."""

    nodes: tuple[ir.Node]
    dequantize: ir.Node
    scale: np.ndarray


class DequantizeScaleFolding(RewriteRule[Found]):
    """``DequantizeLinear(q, s) · c`` → ``DequantizeLinear(q, s · c)``. So for ``/ c``.

    The division by √2 of a Gelu that is spelled out is one. It costs as much as the DequantizeLinear does: both are as
    fast as memory takes the floats. Where others read the floats, a DequantizeLinear of its own stands for the product.
    """

    levels = (TransformerLevel.LEVEL3,)  # what fuses a Gelu or an attention of floats looks for its factor before
    roots = ("Div", "Mul")
    numerics = Numerics.QUANTIZED
    produces = ((MICROSOFT, DEQUANTIZE),)  # where the model has it
    fuses = ()
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """A product of dequantized integers by a constant number."""
        numbers, factor = factor_of(root)
        dequantize = dequantizer(numbers)
        plain_attributes(dequantize)
        scale = with_factor(dequantize, factor, multiplied=root.op_type == "Mul")
        _check_integers(inputs(dequantize, 1)[0], root)
        return Found((root,), dequantize, scale)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the DequantizeLinear by the new scale."""
        old = found.dequantize
        operands = [old.inputs[0], constant(found.scale), *old.inputs[2:]]
        return ops.copied(old, operands)


def _check_integers(integers: ir.Value, root: ir.Node) -> None:
    """Refuse constants, and signed integers of a pair, which ONNX Runtime knows by its one scale."""
    need(not is_constant(integers), "it will be folded", integers)
    if integers.dtype != ir.DataType.INT8 or scope.of(scope.graph_of(root)).options.march is March.NATIVE:
        return
    if is_quantizer(integers.producer()):
        raise Refusal("ONNX Runtime makes signed integers unsigned only within pairs of one scale", root)

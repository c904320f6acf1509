"""ConvInteger multiplies its weight by the image; most processors have no fast code for signed by unsigned bytes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import preferred
from ortopt.graph.match import array_of, inputs, is_constant, need, optional, plain_attributes
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.quantization import as_unsigned
from ortopt.rule import RewriteRule

WEIGHT, ZERO_POINT = 1, 3


FORM = Form("", "ConvInteger", "of unsigned weights")


class Found(Struct, frozen=True):
    """The ConvInteger."""

    nodes: tuple[ir.Node, ...]


class ConvIntegerWeightConversion(RewriteRule[Found]):
    """``ConvInteger(x, w)`` of uint8 by int8 weights → by uint8, with a zero point that is 128 more.

    Exact in bits: the same numbers have other names. The kernel's first operand is the weight; ONNX Runtime computes
    signed by unsigned bytes one by one on most processors, and unsigned by unsigned bytes in vectors on all. An image
    of int8 stays beside weights of its kind: pairs of unsigned by signed products saturate where there is no VNNI.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("conv_integer_conversion",)
    roots = ("ConvInteger",)
    weighs = (FORM,)
    targets = (Target.ORT,)
    providers = ("CPUExecutionProvider",)

    def match(self, root: ir.Node) -> Found:
        """A constant weight of int8 beside an image of uint8."""
        plain_attributes(root)
        image, weight = inputs(root, 2)
        need(weight.dtype == ir.DataType.INT8, "the weight is not of int8", weight)
        need(image.dtype == ir.DataType.UINT8, "the image is not of uint8: products might saturate", image)
        zero = optional(root, ZERO_POINT)
        constants = is_constant(weight) and (zero is None or is_constant(zero))
        need(constants, "the weight or its zero point is no constant", weight)
        preferred(root, [FORM])
        return Found((root,))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the same convolution with the same numbers."""
        (root,) = found.nodes
        operands = [*root.inputs, *[None] * (ZERO_POINT + 1 - len(root.inputs))]
        zero = operands[ZERO_POINT]
        operands[WEIGHT] = as_unsigned(array_of(inputs(root, 2)[1]))
        operands[ZERO_POINT] = as_unsigned(np.zeros((), np.int8) if zero is None else array_of(zero))
        return ops.copied(root, operands)

"""ConvInteger makes products of matrices of depthwise convolutions; floats hold the same integers, and are faster."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster, preferred
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    inputs,
    is_constant,
    need,
    need_float32,
    only_user,
    optional,
    plain_attributes,
    producer,
    static_dims,
)
from ortopt.options import Target, TransformerLevel
from ortopt.rule import RewriteRule

FORM = Form("", "Conv", "instead of ConvInteger")

HIGHEST_PRODUCT = 255 * 255
EXACT_INTEGERS = 2**24
"""Up to which integer float32 has them all."""


class Found(Struct, frozen=True):
    """The ConvInteger and the Cast, and the weight as floats."""

    nodes: tuple[ir.Node, ir.Node]
    weight: np.ndarray


class ConvIntegerConversion(RewriteRule[Found]):
    """``Cast(ConvInteger(q, w))`` → ``Conv(DequantizeLinear(q, 1), floats of w)``, where a group has few channels.

    So few are those of depthwise convolutions and of images of colours, with so few products that floats win. Exact in
    bits: no sum is beyond the integers that float32 has. The weight grows to four times its size, which is
    little for such convolutions.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Cast",)
    targets = (Target.ORT,)
    providers = ("CPUExecutionProvider",)
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Found:
        """A convolution of few products, whose integers become floats at once."""
        (integers,) = inputs(root, 1)
        convolution = producer(integers, "ConvInteger")
        only_user(integers)
        need_float32(root.outputs[0])
        plain_attributes(root)
        plain_attributes(convolution)
        weight = inputs(convolution, 2)[1]
        zero = optional(convolution, 3)
        need(is_constant(weight) and (zero is None or is_constant(zero)), "the weight is no constant", weight)
        channels, *kernel = static_dims(weight)[1:]
        need(bool(kernel), "it has no spatial axes", weight)
        check_faster(root, FORM, group=channels)
        terms = channels * math.prod(kernel)
        need(0 < terms * HIGHEST_PRODUCT <= EXACT_INTEGERS, "floats do not hold all sums", convolution)
        preferred(root, [FORM])
        zeros = np.zeros((), np.int32) if zero is None else array_of(zero).astype(np.int32)
        need(zeros.size == 1, "the weight has several zero points", convolution)
        return Found((convolution, root), (array_of(weight).astype(np.int32) - zeros.reshape(())).astype(np.float32))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution of the same numbers."""
        convolution, _ = found.nodes
        zero = optional(convolution, 2)
        operands = [convolution.inputs[0], constant(np.ones((), np.float32)), *([] if zero is None else [zero])]
        numbers = ir.Node("", "DequantizeLinear", operands)
        return ir.Node("", "Conv", [numbers.outputs[0], constant(found.weight)], convolution.attributes.values())

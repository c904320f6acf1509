"""ConvIntegers in forms for which ONNX Runtime has fast code."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

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
from ortopt.patterns.quantization import with_unsigned
from ortopt.rule import Match
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule

AS_FLOATS = Form("", "Conv", "instead of ConvInteger")

HIGHEST_PRODUCT = 255 * 255
EXACT_INTEGERS = 2**24
"""Up to which integer float32 has them all."""


class ConvIntegerConversion(CpuRule[Match]):
    """``Cast(ConvInteger(q, w))`` → ``Conv(DequantizeLinear(q, 1), floats of w)``, where a group has few channels.

    ConvInteger makes products of matrices of depthwise convolutions; floats hold the same integers, and are faster.

    So few are those of depthwise convolutions and of images of colours, with so few products that floats win. Exact in
    bits: no sum is beyond the integers that float32 has. The weight grows to four times its size, which is little for
    such convolutions.
    """

    roots = ("Cast",)
    needs = ("ConvInteger",)
    weighs = (AS_FLOATS,)

    def match(self, root: ir.Node) -> Match:
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
        check_faster(root, AS_FLOATS, group=channels)
        terms = channels * math.prod(kernel)
        need(0 < terms * HIGHEST_PRODUCT <= EXACT_INTEGERS, "floats do not hold all sums", convolution)
        preferred(root, [AS_FLOATS])
        zeros = np.zeros((), np.int32) if zero is None else array_of(zero).astype(np.int32)
        need(zeros.size == 1, "the weight has several zero points", convolution)
        floats = (array_of(weight).astype(np.int32) - zeros.reshape(())).astype(np.float32)
        return Match((convolution, root), lambda: _of_floats(convolution, floats))


def _of_floats(old: ir.Node, weight: np.ndarray) -> ir.Node:
    """Build the convolution of the same numbers."""
    zero = optional(old, 2)
    operands = [old.inputs[0], constant(np.ones((), np.float32)), *([] if zero is None else [zero])]
    numbers = ir.Node("", "DequantizeLinear", operands)
    return ir.Node("", "Conv", [numbers.outputs[0], constant(weight)], old.attributes.values())


WEIGHT, ZERO_POINT = 1, 3


UNSIGNED = Form("", "ConvInteger", "of unsigned weights")


class ConvIntegerWeightConversion(CpuRule[Match]):
    """``ConvInteger(x, w)`` of uint8 by int8 weights → by uint8, with a zero point that is 128 more.

    ConvInteger multiplies its weight by the image; most processors have no fast code for signed by unsigned bytes.

    Exact in bits: the same numbers have other names. The kernel's first operand is the weight; ONNX Runtime computes
    signed by unsigned bytes one by one on most processors, and unsigned by unsigned bytes in vectors on all. An image
    of int8 stays beside weights of its kind: pairs of unsigned by signed products saturate where there is no VNNI.
    """

    after = ("conv_integer_conversion",)
    roots = ("ConvInteger",)
    weighs = (UNSIGNED,)

    def match(self, root: ir.Node) -> Match:
        """A constant weight of int8 beside an image of uint8."""
        plain_attributes(root)
        image, weight = inputs(root, 2)
        need(weight.dtype == ir.DataType.INT8, "the weight is not of int8", weight)
        need(image.dtype == ir.DataType.UINT8, "the image is not of uint8: products might saturate", image)
        zero = optional(root, ZERO_POINT)
        constants = is_constant(weight) and (zero is None or is_constant(zero))
        need(constants, "the weight or its zero point is no constant", weight)
        preferred(root, [UNSIGNED])
        return Match((root,), lambda: with_unsigned(root, [(WEIGHT, ZERO_POINT)]))

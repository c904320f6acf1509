"""A Softmax between DequantizeLinear and QuantizeLinear has a kernel with a table of exponentials."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import Refusal, attribute, dims, inputs, is_never_zero, need, opset
from ortopt.patterns.quantization import MICROSOFT
from ortopt.patterns.quantized_kernels import (
    SAME_UNIT,
    KernelCall,
    Operand,
    UnitFusion,
    check_same_type,
    operand,
    result,
    unit_before,
)

LAST_AXIS_BY_DEFAULT = 13
"""The opset from which on Softmax is along one axis, by default the last."""

LONGEST = 1 << 14
"""Up to this length rounding of the sum moves no share by a step."""

STEPS = 100
"""How many steps of the result, for each term, the kernel multiplies its largest exponential by without overflow."""


class QlinearSoftmaxFusion(UnitFusion):
    """``Quantize(Softmax(Dequantize(x)))`` → ``com.microsoft.QLinearSoftmax(x)``."""

    produces = ((MICROSOFT, "QLinearSoftmax"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A Softmax along one axis, with a step of which one is a multiple: the kernel cuts off the rest."""
        softmax = unit_before(root, "Softmax")
        y = result(root)
        version = opset(softmax)
        need(version >= LAST_AXIS_BY_DEFAULT, "before opset 13 it flattens what is behind the axis", softmax)
        x = operand(inputs(softmax, 1)[0])
        check_same_type(x, y)
        _check_step(y, root)
        axis = attribute(softmax, "axis", -1)
        sizes = dims(x.integers)
        need(-len(sizes) <= axis < len(sizes), "the axis is out of range", softmax)
        some = all(is_never_zero(size, softmax) for size in sizes)
        need(some, "the kernel fails where there are no elements", softmax)
        length = sizes[axis]
        if not isinstance(length, int):
            raise Refusal("the length is not known, and of one element the kernel makes 0", softmax)
        need(length <= LONGEST, "the sum has too many terms", softmax)
        need(STEPS * length * y.step >= 1, "the kernel overflows for so few elements", softmax)
        attributes = (ir.AttrInt64("axis", axis), ir.AttrInt64("opset", LAST_AXIS_BY_DEFAULT))
        return KernelCall((softmax, root), "QLinearSoftmax", (*x.triple, y.scale, y.zero_point), attributes)


def _check_step(y: Operand, root: ir.Node) -> None:
    scale = np.float32(y.mapping.scale)
    steps = np.floor(np.float32(1) / scale)
    whole = abs(float(steps) * float(scale) - 1) <= SAME_UNIT
    need(whole, "the kernel takes a step of which one is no multiple for a larger one", root)

"""A Softmax between DequantizeLinear and QuantizeLinear has a kernel with a table of exponentials."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import dims, inputs, need
from ortopt.patterns.quantized_kernels import KernelCall, UnitFusion, check_same_type, operand, result, unit_before
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._quantized_softmax import LAST_AXIS_BY_DEFAULT, check_length, check_step


class QlinearSoftmaxFusion(UnitFusion):
    """``Quantize(Softmax(Dequantize(x)))`` → ``com.microsoft.QLinearSoftmax(x)``."""

    produces = ((MICROSOFT, "QLinearSoftmax"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A Softmax along one axis, with a step of which one is a multiple: the kernel cuts off the rest."""
        softmax = unit_before(root, "Softmax")
        y = result(root)
        need(not ops.Softmax(softmax).flattens, "before opset 13 it flattens what is behind the axis", softmax)
        x = operand(inputs(softmax, 1)[0])
        check_same_type(x, y)
        check_step(y.mapping.scale, root)
        axis = ops.Softmax(softmax).stated_axis
        check_length(dims(x.integers), axis, y.step, softmax)
        attributes = tuple(ops.changed((), axis=axis, opset=LAST_AXIS_BY_DEFAULT))
        return KernelCall((softmax, root), "QLinearSoftmax", (*x.triple, y.scale, y.zero_point), attributes)

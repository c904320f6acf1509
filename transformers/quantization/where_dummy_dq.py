"""A quantized kernel of Where needs two DequantizeLinear; a constant operand can be written as one."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import semantics
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, FLOAT16, dtype, inputs, is_constant, need, scalar
from ortopt.options import TransformerLevel
from ortopt.patterns.quantization import dequantizer, has_one_scale, is_quantizer
from ortopt.rule import RewriteRule

INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)


class Found(Struct, frozen=True):
    """The Where, which of its operands is the number, and the DequantizeLinear of the other."""

    nodes: tuple[ir.Node, ...]
    position: int
    number: float
    dequantize: ir.Node


class WhereDummyDq(RewriteRule[Found]):
    """``Quantize(Where(c, DequantizeLinear(q), number))`` → the number, too, comes from a DequantizeLinear.

    The result is exact: the number is (1 - 0) * number if it is positive, (0 - 1) * -number if it is negative, and (0 -
    0) * 1 if it is zero; products with 1 and -1 do not round. It is off by default, because it adds a node, and because
    ONNX Runtime does the same when it loads a model.
    """

    levels = (TransformerLevel.LEVEL1,)
    enabled = False
    after = ("constant_folding", "qdq_propagation")
    roots = ("Where",)

    def match(self, root: ir.Node) -> Found:
        """One operand dequantized, the other one number, the result quantized to integers of the same type."""
        _, *operands = inputs(root, 3)
        constants = [position for position, value in enumerate(operands) if is_constant(value)]
        need(len(constants) == 1, "not exactly one operand is a constant", root)
        (index,) = constants
        dequantize = dequantizer(operands[1 - index])
        need(dequantize.domain == "", "the DequantizeLinear is not that of ai.onnx", dequantize)
        need(has_one_scale(dequantize), "there are several scales", dequantize)
        integers = dtype(inputs(dequantize, 1)[0])
        need(integers in INTEGERS, "no integers of 8 or 16 bits", dequantize)
        number = scalar(operands[index])
        floats = dtype(operands[index])
        need(floats in (FLOAT, FLOAT16), "the numbers are neither float32 nor float16", root)
        need(dtype(inputs(dequantize, 2)[1]) == floats, "numbers and scales are of different types", dequantize)
        need(bool(np.isfinite(number)), "the number is not finite", root)
        need(number != 0 or not np.signbit(number), "no integer becomes a negative zero", root)
        least = np.finfo(floats.numpy()).smallest_normal
        need(number == 0 or abs(number) >= least, "the number is subnormal: processors may take it for zero", root)
        result = root.outputs[0]
        users = [use.node for use in result.uses()]
        quantized = bool(users) and not result.is_graph_output() and all(is_quantizer(user) for user in users)
        need(quantized, "the result is not quantized", root)
        need(all(user.outputs[0].dtype == integers for user in users), "the quantized types differ", root)
        return Found((root,), index + 1, number, dequantize)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the DequantizeLinear of the number."""
        (root,) = found.nodes
        tensor = semantics.constant_tensor(root.inputs[found.position])
        integers = dtype(inputs(found.dequantize, 1)[0])
        shape = () if tensor is None else tuple(tensor.shape.numpy())
        floats = dtype(inputs(found.dequantize, 2)[1])
        code = constant(np.full(shape, int(found.number > 0)), integers)
        zero_point = constant(np.array(int(found.number < 0)), integers)
        scale = constant(np.array(abs(found.number) or 1.0), floats)
        own = ir.Node("", "DequantizeLinear", [code, scale, zero_point])
        operands = list(root.inputs)
        operands[found.position] = own.outputs[0]
        return ir.Node("", "Where", operands)

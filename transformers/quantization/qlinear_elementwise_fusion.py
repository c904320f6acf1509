"""Sums, products and activations between DequantizeLinear and QuantizeLinear have kernels of 8-bit integers."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import inputs, need, plain_attributes
from ortopt.patterns.quantized_kernels import (
    Input,
    KernelCall,
    Operand,
    UnitFusion,
    check_same_type,
    operand,
    result,
    unit_before,
)
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._quantized_broadcasting import operands_of_kernel

KERNELS = {"Add": "QLinearAdd", "LeakyRelu": "QLinearLeakyRelu", "Mul": "QLinearMul", "Relu": "QLinearLeakyRelu"} | {
    "Sigmoid": "QLinearSigmoid"
}
"""The ops that have such a kernel; a Relu is a LeakyRelu without a slope."""

PAIRS = ("Add", "Mul")
"""Those that have two operands."""

COARSEST = 2.0**10
"""How much an operand's step may be of the result's: what is left of two such operands is still exact to a tenth."""


class QlinearElementwiseFusion(UnitFusion):
    """``Quantize(Add(Dequantize(a), Dequantize(b)))`` → ``com.microsoft.QLinearAdd(a, b)``.

    So for Mul, Sigmoid, LeakyRelu and Relu. The activations are tables, and exact. A sum or a product may become the
    neighbouring integer where it is a tie: the kernel adds the zero point before it rounds to even. Operands that may
    have no elements stay where the kernel would read one.
    """

    produces = tuple((MICROSOFT, kernel) for kernel in sorted(set(KERNELS.values())))

    def match(self, root: ir.Node) -> KernelCall:
        """An elementwise op of operands that are all dequantized."""
        op = unit_before(root, *KERNELS)
        y = result(root)
        attributes = tuple(plain_attributes(op).values())
        if op.op_type == "Relu":
            attributes = (ir.AttrFloat32("alpha", 0.0),)
        operands = [operand(value) for value in inputs(op, 2 if op.op_type in PAIRS else 1)]
        check_same_type(*operands, y)
        if op.op_type == "Add":
            fine = all(item.step <= COARSEST * y.step for item in operands)
            need(fine, "the operands' steps are so large that rounding decides the sum", op)
        triples = [item for each in _readable(op, operands) for item in each]
        return KernelCall((op, root), KERNELS[op.op_type], (*triples, y.scale, y.zero_point), attributes)


def _readable(op: ir.Node, operands: list[Operand]) -> list[tuple[Input, ...]]:
    """The inputs of the kernel for its operands: those of two as they may be read without elements."""
    if op.op_type not in PAIRS:
        return [item.triple for item in operands]
    integers = operands_of_kernel(operands[0].integers, operands[1].integers, op)
    return [(value, *item.triple[1:]) for value, item in zip(integers, operands, strict=True)]

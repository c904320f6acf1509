"""Kernels of 8-bit integers in place of an op of floats between DequantizeLinear and QuantizeLinear.

`ortopt.patterns.quantized_kernels` says what such a unit is; each rule here, which op has which kernel, and where that
gives the same.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import dims, inputs, is_never_zero, need, optional, plain_attributes, rank, static_dims
from ortopt.options import Numerics
from ortopt.patterns.quantized_kernels import (
    Input,
    KernelCall,
    Operand,
    Product,
    UnitFusion,
    bias_input,
    check_columns,
    check_same_type,
    check_weight,
    operand,
    terms_of,
)
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._kernels import LAST_AXIS_BY_DEFAULT, check_length, check_step, operands_of_kernel

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
    units = tuple(KERNELS)

    def kernel(self, unit: ir.Node, y: Operand) -> KernelCall:
        """An elementwise op of operands that are all dequantized."""
        attributes = tuple(plain_attributes(unit).values())
        if unit.op_type == "Relu":
            attributes = (ir.AttrFloat32("alpha", 0.0),)
        operands = [operand(value) for value in inputs(unit, 2 if unit.op_type in PAIRS else 1)]
        check_same_type(*operands, y)
        if unit.op_type == "Add":
            fine = all(item.step <= COARSEST * y.step for item in operands)
            need(fine, "the operands' steps are so large that rounding decides the sum", unit)
        triples = [item for each in _readable(unit, operands) for item in each]
        return KernelCall(KERNELS[unit.op_type], (*triples, y.scale, y.zero_point), attributes)


def _readable(unit: ir.Node, operands: list[Operand]) -> list[tuple[Input, ...]]:
    """The inputs of the kernel for its operands: those of two as they may be read without elements."""
    if unit.op_type not in PAIRS:
        return [item.triple for item in operands]
    integers = operands_of_kernel(operands[0].integers, operands[1].integers, unit)
    return [(value, *item.triple[1:]) for value, item in zip(integers, operands, strict=True)]


class QlinearConcatFusion(UnitFusion):
    """``Quantize(Concat(Dequantize(a), …))`` → ``com.microsoft.QLinearConcat(a, …)``.

    Exact: the kernel maps each of the 256 integers as the unit does.
    """

    numerics = Numerics.EXACT
    produces = ((MICROSOFT, "QLinearConcat"),)
    units = ("Concat",)

    def kernel(self, unit: ir.Node, y: Operand) -> KernelCall:
        """A Concat of dequantized operands of the result's type."""
        plain_attributes(unit)
        parts = [operand(value) for value in inputs(unit, len(unit.inputs))]
        check_same_type(*parts, y)
        triples = [item for part in parts for item in part.triple]
        attributes = tuple(ops.changed((), axis=ops.Concat(unit).axis))
        return KernelCall("QLinearConcat", (y.scale, y.zero_point, *triples), attributes)


class QlinearWhereFusion(UnitFusion):
    """``Quantize(Where(c, Dequantize(a), Dequantize(b)))`` → ``com.microsoft.QLinearWhere(c, a, b)``.

    Exact: the kernel maps each of the 256 integers as the unit does.
    """

    numerics = Numerics.EXACT
    produces = ((MICROSOFT, "QLinearWhere"),)
    units = ("Where",)

    def kernel(self, unit: ir.Node, y: Operand) -> KernelCall:
        """A Where of two dequantized operands."""
        condition, left, right = inputs(unit, 3)
        a, b = operand(left), operand(right)
        check_same_type(a, b, y)
        operands = (condition, *a.triple, *b.triple, y.scale, y.zero_point)
        return KernelCall("QLinearWhere", operands)


class QlinearPoolFusion(UnitFusion):
    """``Quantize(AveragePool(Dequantize(x)))`` → ``com.microsoft.QLinearAveragePool(x)``.

    So for GlobalAveragePool.
    """

    produces = ((MICROSOFT, "QLinearAveragePool"), (MICROSOFT, "QLinearGlobalAveragePool"))
    units = ("AveragePool", "GlobalAveragePool")

    def kernel(self, unit: ir.Node, y: Operand) -> KernelCall:
        """A pool of means."""
        attributes = plain_attributes(unit)
        x = operand(inputs(unit, 1)[0])
        check_same_type(x, y)
        whole = unit.op_type == "GlobalAveragePool"
        sizes = dims(x.integers)
        need(all(is_never_zero(size, unit) for size in sizes[2:]), "a mean of nothing", unit)
        if not whole:
            need(set(ops.Pool(unit).dilations) == {1}, "the kernel knows no dilations", unit)
            need(not ops.Pool(unit).rounds_up, "windows beyond the border are counted otherwise", unit)
        kept = tuple(ops.changed(attributes.values(), dilations=None))
        operands = (*x.triple, y.scale, y.zero_point)
        return KernelCall(f"QLinear{unit.op_type}", operands, kept)


class QlinearSoftmaxFusion(UnitFusion):
    """``Quantize(Softmax(Dequantize(x)))`` → ``com.microsoft.QLinearSoftmax(x)``."""

    produces = ((MICROSOFT, "QLinearSoftmax"),)
    units = ("Softmax",)

    def kernel(self, unit: ir.Node, y: Operand) -> KernelCall:
        """A Softmax along one axis, with a step of which one is a multiple: the kernel cuts off the rest."""
        need(not ops.Softmax(unit).flattens, "before opset 13 it flattens what is behind the axis", unit)
        x = operand(inputs(unit, 1)[0])
        check_same_type(x, y)
        check_step(y.mapping.scale, y.integers)
        axis = ops.Softmax(unit).stated_axis
        check_length(dims(x.integers), axis, y.step, unit)
        attributes = tuple(ops.changed((), axis=axis, opset=LAST_AXIS_BY_DEFAULT))
        return KernelCall("QLinearSoftmax", (*x.triple, y.scale, y.zero_point), attributes)


class QlinearMatmulFusion(UnitFusion):
    """``Quantize(MatMul(Dequantize(a), Dequantize(b)))`` → ``QLinearMatMul(a, b)``."""

    fuses = (("", "QLinearMatMul"),)
    units = ("MatMul",)

    def kernel(self, unit: ir.Node, y: Operand) -> KernelCall:
        """A product of two operands of 8 bits, the second perhaps with a scale for each column."""
        a_floats, b_floats = inputs(unit, 2)
        a, b = operand(a_floats), operand(b_floats, channels=True)
        need(rank(a.integers) >= 2 and rank(b.integers) >= 2, "an operand is a vector", unit)
        check_columns(b)
        terms_of(a.integers, b.integers)
        operands = (*a.triple, *b.triple, y.scale, y.zero_point)
        return KernelCall("QLinearMatMul", operands, domain="")


class QlinearConvFusion(UnitFusion):
    """``Quantize(Conv(Dequantize(x), Dequantize(w), b))`` → ``QLinearConv(x, w, b)``.

    A bias that is not in the kernel's units is rounded to them, where that is little of the result's step.
    """

    fuses = (("", "QLinearConv"),)
    units = ("Conv",)

    def kernel(self, unit: ir.Node, y: Operand) -> KernelCall:
        """A convolution by a constant weight of 8 bits."""
        attributes = plain_attributes(unit)
        x_floats, w_floats = inputs(unit, 2)
        x, weight = operand(x_floats), operand(w_floats, channels=True)
        check_weight(weight)
        scales = weight.mapping.scale
        need(scales.ndim == 0 or weight.mapping.axis == 0, "the scales are not those of channels", w_floats)
        channels, *kernel = static_dims(weight.integers)
        steps = x.step * scales.astype(np.float64)
        bias = bias_input(optional(unit, 2), Product(math.prod(kernel), steps, channels, y.step))
        operands = [*x.triple, *weight.triple, y.scale, y.zero_point, *([] if bias is None else [bias])]
        return KernelCall("QLinearConv", operands, tuple(attributes.values()), domain="")


class QgemmFusion(UnitFusion):
    """``Quantize(Gemm(Dequantize(a), Dequantize(b), c))`` → ``com.microsoft.QGemm(a, b, c)``.

    A bias that is not in the kernel's units is rounded to them, where that is little of the result's step.
    """

    produces = ((MICROSOFT, "QGemm"),)
    units = ("Gemm",)

    def kernel(self, unit: ir.Node, y: Operand) -> KernelCall:
        """A Gemm by a constant weight of 8 bits."""
        read, attributes = ops.Gemm(unit), plain_attributes(unit).values()
        a_floats, b_floats = inputs(unit, 2)
        a, weight = operand(a_floats), operand(b_floats, channels=True)
        check_weight(weight)
        columns = 0 if read.transposes_b else 1
        scales = weight.mapping.scale
        need(scales.ndim == 0 or weight.mapping.axis == columns, "the scales are not those of columns", b_floats)
        c = optional(unit, 2)
        need(c is None or read.beta == 1.0, "the bias is scaled", unit)
        sizes = static_dims(weight.integers, 2)
        need(sizes[1 - columns] > 0, "the kernel leaves the sum of nothing undefined", weight.integers)
        need(read.alpha > 0, "alpha is not positive", unit)
        steps = np.float64(read.alpha) * a.step * scales.astype(np.float64)
        bias = bias_input(c, Product(sizes[1 - columns], steps, sizes[columns], y.step))
        operands = (*a.triple, *weight.triple, bias, y.scale, y.zero_point)
        return KernelCall("QGemm", operands, tuple(ops.changed(attributes, beta=None)))

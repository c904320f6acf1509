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
    result,
    terms_of,
    unit_before,
)
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._quantized_broadcasting import operands_of_kernel
from ortopt.transformers.quantization._quantized_softmax import LAST_AXIS_BY_DEFAULT, check_length, check_step

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


class QlinearConcatFusion(UnitFusion):
    """``Quantize(Concat(Dequantize(a), …))`` → ``com.microsoft.QLinearConcat(a, …)``.

    Exact: the kernel maps each of the 256 integers as the unit does.
    """

    numerics = Numerics.EXACT
    produces = ((MICROSOFT, "QLinearConcat"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A Concat of dequantized operands of the result's type."""
        concat = unit_before(root, "Concat")
        y = result(root)
        plain_attributes(concat)
        parts = [operand(value) for value in inputs(concat, len(concat.inputs))]
        check_same_type(*parts, y)
        triples = [item for part in parts for item in part.triple]
        attributes = tuple(ops.changed((), axis=ops.Concat(concat).axis))
        return KernelCall((concat, root), "QLinearConcat", (y.scale, y.zero_point, *triples), attributes)


class QlinearWhereFusion(UnitFusion):
    """``Quantize(Where(c, Dequantize(a), Dequantize(b)))`` → ``com.microsoft.QLinearWhere(c, a, b)``.

    Exact: the kernel maps each of the 256 integers as the unit does.
    """

    numerics = Numerics.EXACT
    produces = ((MICROSOFT, "QLinearWhere"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A Where of two dequantized operands."""
        where = unit_before(root, "Where")
        y = result(root)
        condition, left, right = inputs(where, 3)
        a, b = operand(left), operand(right)
        check_same_type(a, b, y)
        operands = (condition, *a.triple, *b.triple, y.scale, y.zero_point)
        return KernelCall((where, root), "QLinearWhere", operands)


class QlinearPoolFusion(UnitFusion):
    """``Quantize(AveragePool(Dequantize(x)))`` → ``com.microsoft.QLinearAveragePool(x)``.

    So for GlobalAveragePool.
    """

    produces = ((MICROSOFT, "QLinearAveragePool"), (MICROSOFT, "QLinearGlobalAveragePool"))

    def match(self, root: ir.Node) -> KernelCall:
        """A pool of means."""
        pool = unit_before(root, "AveragePool", "GlobalAveragePool")
        y = result(root)
        attributes = plain_attributes(pool)
        x = operand(inputs(pool, 1)[0])
        check_same_type(x, y)
        whole = pool.op_type == "GlobalAveragePool"
        sizes = dims(x.integers)
        need(all(is_never_zero(size, pool) for size in sizes[2:]), "a mean of nothing", pool)
        if not whole:
            need(set(ops.Pool(pool).dilations) == {1}, "the kernel knows no dilations", pool)
            need(not ops.Pool(pool).rounds_up, "windows beyond the border are counted otherwise", pool)
        kept = tuple(ops.changed(attributes.values(), dilations=None))
        operands = (*x.triple, y.scale, y.zero_point)
        return KernelCall((pool, root), f"QLinear{pool.op_type}", operands, kept)


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


class QlinearMatmulFusion(UnitFusion):
    """``Quantize(MatMul(Dequantize(a), Dequantize(b)))`` → ``QLinearMatMul(a, b)``."""

    fuses = (("", "QLinearMatMul"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A product of two operands of 8 bits, the second perhaps with a scale for each column."""
        product = unit_before(root, "MatMul")
        y = result(root)
        a_floats, b_floats = inputs(product, 2)
        a, b = operand(a_floats), operand(b_floats, channels=True)
        need(rank(a.integers) >= 2 and rank(b.integers) >= 2, "an operand is a vector", product)
        check_columns(b)
        terms_of(a.integers, b.integers)
        operands = (*a.triple, *b.triple, y.scale, y.zero_point)
        return KernelCall((product, root), "QLinearMatMul", operands, domain="")


class QlinearConvFusion(UnitFusion):
    """``Quantize(Conv(Dequantize(x), Dequantize(w), b))`` → ``QLinearConv(x, w, b)``.

    A bias that is not in the kernel's units is rounded to them, where that is little of the result's step.
    """

    fuses = (("", "QLinearConv"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A convolution by a constant weight of 8 bits."""
        convolution = unit_before(root, "Conv")
        y = result(root)
        attributes = plain_attributes(convolution)
        x_floats, w_floats = inputs(convolution, 2)
        x, weight = operand(x_floats), operand(w_floats, channels=True)
        check_weight(weight)
        scales = weight.mapping.scale
        need(scales.ndim == 0 or weight.mapping.axis == 0, "the scales are not those of channels", w_floats)
        channels, *kernel = static_dims(weight.integers)
        unit = x.step * scales.astype(np.float64)
        bias = bias_input(optional(convolution, 2), Product(math.prod(kernel), unit, channels, y.step))
        operands = [*x.triple, *weight.triple, y.scale, y.zero_point, *([] if bias is None else [bias])]
        return KernelCall((convolution, root), "QLinearConv", operands, tuple(attributes.values()), domain="")


class QgemmFusion(UnitFusion):
    """``Quantize(Gemm(Dequantize(a), Dequantize(b), c))`` → ``com.microsoft.QGemm(a, b, c)``.

    A bias that is not in the kernel's units is rounded to them, where that is little of the result's step.
    """

    produces = ((MICROSOFT, "QGemm"),)

    def match(self, root: ir.Node) -> KernelCall:
        """A Gemm by a constant weight of 8 bits."""
        gemm = unit_before(root, "Gemm")
        y = result(root)
        read, attributes = ops.Gemm(gemm), plain_attributes(gemm).values()
        a_floats, b_floats = inputs(gemm, 2)
        a, weight = operand(a_floats), operand(b_floats, channels=True)
        check_weight(weight)
        columns = 0 if read.transposes_b else 1
        scales = weight.mapping.scale
        need(scales.ndim == 0 or weight.mapping.axis == columns, "the scales are not those of columns", b_floats)
        c = optional(gemm, 2)
        need(c is None or read.beta == 1.0, "the bias is scaled", gemm)
        sizes = static_dims(weight.integers, 2)
        need(sizes[1 - columns] > 0, "the kernel leaves the sum of nothing undefined", weight.integers)
        need(read.alpha > 0, "alpha is not positive", gemm)
        unit = np.float64(read.alpha) * a.step * scales.astype(np.float64)
        bias = bias_input(c, Product(sizes[1 - columns], unit, sizes[columns], y.step))
        operands = (*a.triple, *weight.triple, bias, y.scale, y.zero_point)
        return KernelCall((gemm, root), "QGemm", operands, tuple(ops.changed(attributes, beta=None)))

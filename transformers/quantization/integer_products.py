"""Products of integer matrices that become floats at once, as dynamic quantization writes them.

A kernel can make floats of the integers, and add a bias, while they are in a register; another one can quantize the
floats that it alone reads as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import (
    FLOAT,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    is_used_once,
    is_vector_of,
    need,
    need_float32,
    need_known,
    need_present,
    only_user,
    operand_from,
    optional,
    plain_attributes,
    producer,
    rank,
    shape_of,
)
from ortopt.options import ONNX_RUNTIMES, Numerics, TransformerLevel
from ortopt.patterns.quantization import is_quantizer
from ortopt.patterns.quantized_kernels import check_columns, operand, terms_of
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._kernels import bias_behind


class IntegerProduct(Struct, frozen=True):
    """``Cast(MatMulInteger(a, b)) · (a_scale · b_scale) + bias``.

    Attributes:
        nodes: Its nodes, but for the product of the scales, which others may read.
        a: The first operand's integers.
        b: The second operand's integers.
        a_scale: One number.
        b_scale: One number, or one for each column.
        a_zero_point: None where it is 0.
        b_zero_point: None where it is 0.
        bias: None where there is none.
        y: The result.
    """

    nodes: tuple[ir.Node, ...]
    a: ir.Value
    b: ir.Value
    a_scale: ir.Value
    b_scale: ir.Value
    a_zero_point: ir.Value | None
    b_zero_point: ir.Value | None
    bias: ir.Value | None
    y: ir.Value

    def as_kernel(self, op: str, operands: Sequence[ir.Value | None], *more: ir.Node) -> Match:
        """The match that replaces it by a kernel of ONNX Runtime.

        Args:
            op: The kernel's op.
            operands: What it reads; what is missing at the end is left out.
            more: Nodes that go too.
        """
        last = max(place for place, value in enumerate(operands, 1) if value is not None)
        return Match.ending_in(self.y, (*more, *self.nodes), lambda: ir.Node(MICROSOFT, op, operands[:last]))


class DynamicQuantizeMatmulFusion(RewriteRule[Match]):
    """``Cast(MatMulInteger(q, b, z)) · (s · t) + c`` → ``com.microsoft.DynamicQuantizeMatMul(x, b, t, c)``.

    Here q, s and z are what DynamicQuantizeLinear gives of x. Without a bias, too. Where several products read the
    quantized floats, they are quantized once, and stay.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Mul",)
    needs = ("MatMulInteger",)
    lookback = 4
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = ONNX_RUNTIMES
    produces = ((MICROSOFT, "DynamicQuantizeMatMul"),)

    def match(self, root: ir.Node) -> Match:
        """A product of integers whose first operand is quantized for it alone."""
        product = _integer_product(root)
        quantize = product.a.producer()
        need_present(is_op(quantize, "DynamicQuantizeLinear"), "no DynamicQuantizeLinear comes before", product.a)
        assert quantize is not None
        _, scale, zero_point = quantize.outputs
        own = product.a_scale is scale and product.a_zero_point is zero_point
        need(own, "the scale and the zero point are others", quantize)
        alone = all(is_used_once(value) and not value.is_graph_output() for value in quantize.outputs)
        need(alone, "others read the quantized floats", quantize)
        scales = next(use.node for use in scale.uses())
        need(is_used_once(scales.outputs[0]), "others read the product of the scales", scales)
        operands = (inputs(quantize, 1)[0], product.b, product.b_scale, product.b_zero_point, product.bias)
        return product.as_kernel("DynamicQuantizeMatMul", operands, quantize, scales)


class MatmulIntegerToFloatFusion(RewriteRule[Match]):
    """``Cast(MatMulInteger(a, b)) · (s · t) + c`` → ``com.microsoft.MatMulIntegerToFloat(a, b, s, t, c)``.

    So for ``MatMul(DequantizeLinear(a), DequantizeLinear(b))`` whose result stays float. Without a bias, too.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("dynamic_quantize_matmul_fusion", "qdq_propagation")
    roots = ("MatMul", "Mul")
    needs = ("MatMulInteger", "DequantizeLinear", "com.microsoft::DequantizeLinear")
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = ONNX_RUNTIMES
    produces = ((MICROSOFT, "MatMulIntegerToFloat"),)

    def match(self, root: ir.Node) -> Match:
        """A product of integers by the product of their scales, or of what is dequantized."""
        found = _integer_product(root) if root.op_type == "Mul" else _dequantized_product(root)
        scales_and_zeros = (found.a_scale, found.b_scale, found.a_zero_point, found.b_zero_point)
        return found.as_kernel("MatMulIntegerToFloat", (found.a, found.b, *scales_and_zeros, found.bias))


def _dequantized_product(root: ir.Node) -> IntegerProduct:
    """The product of two operands that are dequantized from 8 bits."""
    plain_attributes(root)
    left, right = inputs(root, 2)
    a, b = operand(left), operand(right, channels=True)
    need(rank(a.integers) >= 2 and rank(b.integers) >= 2, "an operand is a vector", root)
    check_columns(b)
    terms_of(a.integers, b.integers)
    quantized = any(is_quantizer(use.node) for use in root.outputs[0].uses())
    need(not quantized, "a kernel can quantize the result as well", root)
    addition, bias = bias_behind(root.outputs[0], dims(b.integers)[-1])
    nodes = (root,) if addition is None else (root, addition)
    y = nodes[-1].outputs[0]
    zero = _unless_zero(b.given_zero)
    return IntegerProduct(nodes, a.integers, b.integers, a.scale, b.scale, a.given_zero, zero, bias, y)


def _integer_product(root: ir.Node) -> IntegerProduct:
    """The product of integers that a Mul scales.

    Args:
        root: The Mul.

    Raises:
        Refusal: If it scales something else, or in a way that no kernel does.
    """
    cast, factor = operand_from(root, "Cast")
    (integers,) = inputs(cast, 1)
    need(attribute(cast, "to", 0) == FLOAT, "the integers do not become float32", cast)
    product = producer(integers, "MatMulInteger")
    plain_attributes(product)
    only_user(integers), only_user(cast.outputs[0])
    a, b = inputs(product, 2)
    need(rank(a) >= 2 and rank(b) >= 2, "an operand is a vector", product)
    need(is_never_zero(dims(b)[-2], product), "the kernel leaves the sum of nothing undefined", product)
    columns = dims(b)[-1]
    a_scale, b_scale = _scales(factor)
    zero_a, zero_b = optional(product, 2), optional(product, 3)
    need(_is_single(a_scale), "the first operand has several scales", a_scale)
    need(zero_a is None or _is_single(zero_a), "the first operand has several zero points", product)
    for value in (b_scale, zero_b):
        fits = value is None or _is_single(value) or (rank(b) == 2 and is_vector_of(value, columns))
        need(fits, "the second operand has scales or zero points that are not those of columns", product)
    nodes = (product, cast, root)
    addition, bias = bias_behind(root.outputs[0], columns)
    behind = nodes if addition is None else (*nodes, addition)
    return IntegerProduct(behind, a, b, a_scale, b_scale, zero_a, _unless_zero(zero_b), bias, behind[-1].outputs[0])


def _unless_zero(zero_point: ir.Value | None) -> ir.Value | None:
    """A zero point, but None where it is known to be 0: kernels correct sums by those that they are given."""
    if zero_point is None or not is_constant(zero_point) or array_of(zero_point).any():
        return zero_point
    return None


def _scales(factor: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The two scales that a factor is the product of, the one that is computed first."""
    product = factor.producer()
    product = need_known(product if is_op(product, "Mul") else None, "the factor is no product of two scales", factor)
    first, second = inputs(product, 2)
    need_float32(first)
    need_float32(second)
    return (second, first) if is_constant(first) else (first, second)


def _is_single(value: ir.Value) -> bool:
    return shape_of(value) in ((), (1,))

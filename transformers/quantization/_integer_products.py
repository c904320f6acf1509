"""Products of integer matrices that become floats at once, as dynamic quantization writes them."""

from __future__ import annotations

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
    need_present,
    only_user,
    operand_from,
    optional,
    plain_attributes,
    rank,
    shape_of,
    users,
)
from ortopt.graph.symbolic import Dim

ADDITIONS = ("Add", "Sum")


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

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which may stand below the root."""
        return (self.y,)


def integer_product(root: ir.Node) -> IntegerProduct:
    """The product of integers that a Mul scales.

    Args:
        root: The Mul.

    Raises:
        Refusal: If it scales something else, or in a way that no kernel does.
    """
    cast, factor = operand_from(root, "Cast")
    (integers,) = inputs(cast, 1)
    need(attribute(cast, "to", 0) == FLOAT, "the integers do not become float32", cast)
    product = integers.producer()
    need_present(is_op(product, "MatMulInteger"), "no MatMulInteger comes before", integers)
    assert product is not None
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
    return IntegerProduct(behind, a, b, a_scale, b_scale, zero_a, unless_zero(zero_b), bias, behind[-1].outputs[0])


def unless_zero(zero_point: ir.Value | None) -> ir.Value | None:
    """A zero point, but None where it is known to be 0: kernels correct sums by those that they are given."""
    if zero_point is None or not is_constant(zero_point) or array_of(zero_point).any():
        return zero_point
    return None


def _scales(factor: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The two scales that a factor is the product of, the one that is computed first."""
    product = factor.producer()
    need(is_op(product, "Mul"), "the factor is no product of two scales", factor)
    assert product is not None
    first, second = inputs(product, 2)
    need_float32(first)
    need_float32(second)
    return (second, first) if is_constant(first) else (first, second)


def _is_single(value: ir.Value) -> bool:
    return shape_of(value) in ((), (1,))


def bias_behind(value: ir.Value, columns: Dim) -> tuple[ir.Node, ir.Value] | tuple[None, None]:
    """The node that adds a number for each column to a value, and these numbers; None where none does.

    Args:
        value: A product of matrices, read by nobody else.
        columns: How many columns it has.
    """
    if not is_used_once(value):
        return None, None
    (user,) = users(value)
    if not is_op(user, *ADDITIONS) or len(user.inputs) != 2 or user.graph is not value.graph:
        return None, None
    others = [operand for operand in user.inputs if operand is not value]
    bias = others[0] if len(others) == 1 else None
    if bias is None or not (is_constant(bias) or bias.is_graph_input()) or not is_vector_of(bias, columns):
        return None, None  # what is computed may be computed behind the product
    return user, bias


__all__ = ["IntegerProduct", "bias_behind", "integer_product", "unless_zero"]

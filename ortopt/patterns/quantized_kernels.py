"""Kernels of integers in place of quantized units: DequantizeLinear, an op of floats, QuantizeLinear.

Such a kernel counts in integers, or in floats from tables, and rounds once, to the nearest integer of the result. The
unit rounds sums of floats, and then to the nearest integer too. So both agree but for numbers that lie between two
integers, as near to the middle as floats are rounded: there the results are neighbours. `Numerics.QUANTIZED` says so.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Absent,
    Refusal,
    array_of,
    dims,
    inputs,
    is_constant,
    need,
    need_float32,
    only_user,
    optional,
    plain_attributes,
)
from ortopt.options import ONNX_RUNTIMES, Numerics, TransformerLevel
from ortopt.patterns.quantization import Scaling, dequantizer, is_dequantizer, scaling
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

QUANTIZERS = ("QuantizeLinear", f"{MICROSOFT}::QuantizeLinear")
"""Roots of rules that find a unit by its end."""

BYTES = (ir.DataType.INT8, ir.DataType.UINT8)

ORDINARY = (2.0**-60, 2.0**60)
"""Between these, products and quotients of three scales neither overflow nor lose digits."""

BIAS_ERROR = 2.0**-8
"""By which part of a quantization step of the result a bias may be off where it is rounded for a kernel."""

SAME_UNIT = 2.0**-21
"""Up to here two scales differ by rounding of float32 only."""

HIGHEST_SUM = 2**31 - 1
"""Kernels add up in int32."""

HIGHEST_PRODUCT = 255 * 255
"""The greatest product of two integers of 8 bits less their zero points."""

Input = ir.Value | np.ndarray | None
"""An input of a kernel: a value, the content of a new constant, or nothing."""


class Operand(Struct, frozen=True):
    """What a kernel is told of a dequantized operand, or of a quantized result.

    Attributes:
        integers: The integers.
        scale: The scale, a constant.
        zero_point: The zero point; the content of a new constant where the model has none.
        mapping: What both say.
    """

    integers: ir.Value
    scale: ir.Value
    zero_point: ir.Value | np.ndarray
    mapping: Scaling

    @property
    def triple(self) -> tuple[Input, Input, Input]:
        """Integers, scale and zero point: the order in which kernels take them."""
        return self.integers, self.scale, self.zero_point

    @property
    def given_zero(self) -> ir.Value | None:
        """The zero point, where the model has one."""
        return self.zero_point if isinstance(self.zero_point, ir.Value) else None

    @property
    def step(self) -> float:
        """The scale, where it is one number."""
        return float(self.mapping.scale)


class KernelCall(Struct, frozen=True):
    """The kernel's node that stands for a unit.

    Attributes:
        op: The kernel's op, of ONNX Runtime's domain unless `domain` says otherwise.
        inputs: Its inputs.
        attributes: Its attributes.
        domain: Its domain.
    """

    op: str
    inputs: Sequence[Input]
    attributes: Sequence[ir.Attr] = ()
    domain: str = MICROSOFT

    def built(self) -> ir.Node:
        """The kernel's node, in no graph yet."""
        operands = [constant(item) if isinstance(item, np.ndarray) else item for item in self.inputs]
        return ir.Node(self.domain, self.op, operands, self.attributes)


class UnitFusion(RewriteRule[Match]):
    """What all rules have in common that make a kernel of a unit, found by its QuantizeLinear.

    Attributes:
        units: The ops of floats of which one is in the unit.
    """

    units: ClassVar[tuple[str, ...]]

    levels = (TransformerLevel.LEVEL2,)
    after = (
        *("clip_quantize_elimination", "clip_quantize_reordering", "conv_add_fusion", "matmul_add_fusion"),
        *("qdq_propagation", "unsigned_quantization_conversion"),
    )
    roots = QUANTIZERS
    lookback = 3
    numerics = Numerics.QUANTIZED
    targets = ONNX_RUNTIMES

    def match(self, root: ir.Node) -> Match:
        """One of these ops, which nobody else reads, between integers of 8 bits."""
        unit = unit_before(root, *self.units)
        call = self.kernel(unit, result(root))
        return Match((unit, root), call.built)

    @abc.abstractmethod
    def kernel(self, unit: ir.Node, y: Operand) -> KernelCall:
        """The kernel that stands for a unit.

        Args:
            unit: The op of floats.
            y: Its quantized result.

        Raises:
            Refusal: If none does, with the reason.
        """


def operand(value: ir.Value | None, *, channels: bool = False) -> Operand:
    """An operand that is dequantized from 8 bits by constants.

    Args:
        value: The floats that the op of the unit reads.
        channels: Whether there may be several scales, along one axis.

    Raises:
        Refusal: If it is no such operand, with the reason.
    """
    node = dequantizer(value)
    plain_attributes(node)
    return _operand(node, inputs(node, 2)[0], channels=channels)


def result(root: ir.Node) -> Operand:
    """How a QuantizeLinear, the end of a unit, maps the result to 8 bits.

    Args:
        root: The QuantizeLinear.

    Raises:
        Refusal: If no kernel does so, with the reason.
    """
    plain_attributes(root)
    return _operand(root, root.outputs[0], channels=False)


def unit_before(root: ir.Node, *ops: str) -> ir.Node:
    """The op of floats before a QuantizeLinear, which nobody else reads.

    Raises:
        Refusal: If it is none of these ops, or others read it.
    """
    (numbers,) = inputs(root, 2)[:1]
    node = numbers.producer()
    if node is None or node.domain != "" or node.op_type not in ops:
        raise Absent(f"no {' or '.join(ops)} comes before", numbers)
    only_user(numbers, "QuantizeLinear", domain=root.domain)
    return node


def _operand(node: ir.Node, integers: ir.Value, *, channels: bool) -> Operand:
    mapping = scaling(node)
    need(mapping.integers in BYTES, "the integers are not of 8 bits", node)
    need_float32(inputs(node, 2)[1])
    need(mapping.block == 0, "there are blocks of scales", node)
    need(channels or mapping.scale.ndim == 0, "there are several scales", node)
    least, most = ORDINARY
    ordinary = bool(np.all((mapping.scale >= least) & (mapping.scale <= most)))
    need(ordinary, "a scale is negative, zero, or beyond what kernels can multiply", node)
    scale = inputs(node, 2)[1]
    zero_point = optional(node, 2)
    missing = np.zeros(array_of(scale).shape, mapping.integers.numpy())
    return Operand(integers, scale, missing if zero_point is None else zero_point, mapping)


class Product(Struct, frozen=True):
    """What bounds the sums of a kernel that multiplies matrices or convolves.

    Attributes:
        terms: How many products each sum has.
        unit: What one of the kernel's integers stands for, for each channel of the result.
        channels: How many channels the result has.
        step: The quantization step of the result; infinite where it is not quantized.
    """

    terms: int
    unit: np.ndarray
    channels: int
    step: float


def bias_input(bias: ir.Value | None, product: Product) -> Input:
    """The bias of a product as int32, in units of the kernel's integers.

    A bias in other units, or of floats, is rounded: by how much it is off must be little of the result's step.

    Args:
        bias: The floats that the op of the unit adds; None where there are none.
        product: The product that it is added to.

    Raises:
        Refusal: If it cannot be, or a sum might overflow, with the reason.
    """
    largest = product.terms * HIGHEST_PRODUCT
    if bias is None:
        need(largest <= HIGHEST_SUM, "a sum of so many products might overflow", None)
        return None
    value, content = _bias_integers(bias, product)
    need(content.shape == (product.channels,), "the bias is no number for each channel", bias)
    most = max(int(content.max(initial=0)), -int(content.min(initial=0)))
    need(largest + most <= HIGHEST_SUM, "a sum of so many products might overflow", bias)
    return value


def _bias_integers(bias: ir.Value, product: Product) -> tuple[Input, np.ndarray]:
    """An int32 bias, as an input and as int64 numbers."""
    node = bias.producer()
    if node is None or not is_dequantizer(node):
        return _rounded(array_of(bias), bias, product)
    plain_attributes(node)
    integers, scale = inputs(node, 2)
    zero_point = optional(node, 2)
    content, scales = array_of(integers), array_of(scale)
    need(content.dtype == np.int32 and scales.dtype == np.float32, "the bias is not dequantized from int32", bias)
    shifted = zero_point is not None and bool(np.any(array_of(zero_point)))
    need(not shifted, "the bias has a zero point", bias)
    need(content.shape == (product.channels,), "the bias is no number for each channel", bias)
    need(scales.size in (1, content.size), "there are blocks of scales", bias)
    unit = np.broadcast_to(product.unit, (product.channels,))
    same = np.abs(scales.astype(np.float64).reshape(-1) - unit) <= SAME_UNIT * unit
    if bool(np.all(same)):
        return integers, content.astype(np.int64)
    return _rounded(content.astype(np.float32) * scales.reshape(-1), bias, product)


def _rounded(content: np.ndarray, bias: ir.Value, product: Product) -> tuple[Input, np.ndarray]:
    need(content.dtype == np.float32 and bool(np.isfinite(content).all()), "the bias is not float32 and finite", bias)
    need(content.shape == (product.channels,), "the bias is no number for each channel", bias)
    exact = content.astype(np.float64) / product.unit
    units = np.rint(exact)
    coarse = bool(np.any(np.abs(units - exact) * product.unit > BIAS_ERROR * product.step))
    need(not coarse, "the bias would be rounded to too few digits", bias)
    need(bool(np.all(np.abs(units) <= HIGHEST_SUM)), "the bias is beyond int32", bias)
    return units.astype(np.int32), units.astype(np.int64)


def check_same_type(*tensors: Operand) -> None:
    """Refuse operands and a result that are not all of one type."""
    first = tensors[0].mapping.integers
    alike = all(tensor.mapping.integers == first for tensor in tensors)
    need(alike, "operands and result are not of one type, as the kernel wants", tensors[-1].integers)


def terms_of(a: ir.Value, b: ir.Value) -> int:
    """How many products each element of a product of two matrices is the sum of.

    Raises:
        Refusal: If there may be none, where kernels leave the result as it was, or so many that int32 overflows.
    """
    terms = dims(a)[-1]
    if not isinstance(terms, int):
        terms = dims(b)[-2]
    if not isinstance(terms, int):
        raise Refusal("how many products a sum has is not known, and int32 might overflow", a)
    need(terms > 0, "the kernel leaves the sum of nothing undefined", a)
    need(terms * HIGHEST_PRODUCT <= HIGHEST_SUM, "a sum of so many products might overflow", a)
    return terms


def check_columns(weight: Operand) -> None:
    """Refuse several scales of a matrix that are not those of its columns."""
    if weight.mapping.scale.ndim == 0:
        return
    need(len(dims(weight.integers)) == 2, "there are several scales, and several matrices", weight.integers)
    need(weight.mapping.axis == 1, "the scales are not those of columns", weight.integers)


def check_weight(weight: Operand) -> None:
    """Refuse a weight that changes, or whose channels have zero points of their own, which no kernel takes."""
    need(is_constant(weight.integers), "the weight is no constant", weight.integers)
    zeros = weight.mapping.zero_point
    need(bool(np.all(zeros == zeros.reshape(-1)[:1])), "the channels have zero points of their own", weight.integers)

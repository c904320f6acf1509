"""QuantizeLinear and DequantizeLinear: which numbers they map to which integers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops, semantics
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    FLOAT16,
    Absent,
    Code,
    array_of,
    attribute,
    dtype,
    inputs,
    need,
    optional,
    shape_of,
    users,
)
from ortopt.options import March

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
RANGES = {
    getattr(ir.DataType, f"{sign}INT{bits}"): (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (4, 8, 16)
    for sign in ("", "U")
}
"""The integers of the types that QuantizeLinear rounds to and saturates at."""

FAITHFUL = {FLOAT: (16, 2.0**-100, 2.0**100), FLOAT16: (8, 2.0**-14, 2.0**7)}
"""By type of the numbers: up to which width, and between which scales, an integer survives the way there and back.

The product (q - z) * s and the quotient by s are each off by at most half a unit in the last place. With 17 bits of
q - z and 24 of float32, or 9 and 11 of float16, both together stay below 1/2 while nothing overflows or is subnormal,
so that rounding finds q again. bfloat16 has too few bits.
"""


class Scaling(Struct, frozen=True):
    """A constant mapping between integers and numbers: number = (integer - zero point) * scale.

    Attributes:
        integers: The type of the integers.
        numbers: The type of the numbers.
        scale: As in the model: one for the whole tensor, one for each index of the axis, or one for each block.
        zero_point: In the shape of `scale`, as int64.
        axis: The axis of the scales; 0 where there is one scale.
        block: The size of a block; 0 where there are none.
    """

    integers: ir.DataType
    numbers: ir.DataType
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int
    block: int

    @property
    def lowest(self) -> np.ndarray:
        """The lowest number, in units of the scale."""
        return np.asarray(RANGES[self.integers][0] - self.zero_point)

    @property
    def highest(self) -> np.ndarray:
        """The highest number, in units of the scale."""
        return np.asarray(RANGES[self.integers][1] - self.zero_point)


def is_quantizer(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Whether a node is a QuantizeLinear, of either domain."""
    return node is not None and semantics.key(node) in semantics.QUANTIZERS


def is_dequantizer(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Whether a node is a DequantizeLinear, of either domain."""
    return node is not None and semantics.key(node) in semantics.DEQUANTIZERS


def dequantizer(value: ir.Value | None) -> ir.Node:
    """The DequantizeLinear that computes a value.

    Raises:
        Refusal: If the value comes from elsewhere.
    """
    node = None if value is None else value.producer()
    if node is None or not is_dequantizer(node):
        raise Absent("no DequantizeLinear comes before", value)
    return node


def quantizer(value: ir.Value | None) -> ir.Node:
    """The QuantizeLinear that computes a value.

    Raises:
        Refusal: If the value comes from elsewhere.
    """
    node = None if value is None else value.producer()
    if node is None or not is_quantizer(node):
        raise Absent("no QuantizeLinear comes before", value)
    return node


def is_quantized(value: ir.Value) -> bool:
    """Whether a value is quantized, and nothing else is done with it."""
    return bool(value.uses()) and not value.is_graph_output() and all(map(is_quantizer, users(value)))


def is_unit(first: ir.Node, result: ir.Value) -> bool:
    """Whether a quantized kernel may replace some nodes: first operands are dequantized, and the result is quantized.

    Args:
        first: The first of the nodes.
        result: The result of the last of them.
    """
    return is_quantized(result) and all(
        value is not None and is_dequantizer(value.producer()) for value in first.inputs[:2]
    )


def need_native(root: ir.Node, why: str) -> None:
    """Refuse integers of another sign where the result may run on another processor than this one.

    Args:
        root: The node that is asked about.
        why: On which processors they serve.
    """
    native = scope.of_node(root).options.march is March.NATIVE
    need(native, f"that is {why}, and --march native is not given", root, code=Code.OPTION)


def need_no_pairs(root: ir.Node) -> None:
    """Refuse to take a QuantizeLinear and a DequantizeLinear apart where other runtimes look for such pairs."""
    apart = not scope.of_node(root).options.target.keeps_to_onnx
    need(apart, "other runtimes match an op within its pairs (--target onnx)", root, code=Code.PLACEMENT)


def need_no_other_sign(root: ir.Node, integers: ir.DataType | None, within: str = "pairs of one scale") -> None:
    """Refuse to take signed integers out of what ONNX Runtime makes unsigned as a whole.

    Args:
        root: The node that is asked about.
        integers: Their type.
        within: Within what ONNX Runtime does so.
    """
    stays = integers != ir.DataType.INT8 or scope.of_node(root).options.march is March.NATIVE
    need(stays, f"ONNX Runtime makes signed integers unsigned only within {within}", root)


def has_one_scale(node: ir.Node) -> bool:
    """Whether a QuantizeLinear or DequantizeLinear has one scale for the whole tensor."""
    shape = shape_of(inputs(node, 2)[1])
    return shape is not None and shape in ((), (1,))


def scaling(node: ir.Node) -> Scaling:
    """The constant mapping of a QuantizeLinear or DequantizeLinear.

    Args:
        node: Such a node.

    Raises:
        Refusal: If the scale or the zero point is no constant, or the types are not integers and float32 or float16.
    """
    source, scale = inputs(node, 2)
    quantizes = is_quantizer(node)
    integers, numbers = dtype(node.outputs[0] if quantizes else source), dtype(source if quantizes else node.outputs[0])
    need(integers in RANGES, "the quantized type does not saturate as integers do", node)
    need(attribute(node, "precision", 0) == 0, "it computes in a precision of its own", node)
    need(numbers == scale.dtype, "numbers and scales are of different types", node)
    need(numbers in FAITHFUL, "the numbers are neither float32 nor float16", node)
    scales = array_of(scale)
    zero_point = optional(node, 2)
    zeros = np.zeros(scales.shape, np.int64) if zero_point is None else array_of(zero_point).astype(np.int64)
    need(zeros.shape == scales.shape, "scales and zero points do not fit one another", node)
    block = attribute(node, "block_size", 0)
    if scales.size == 1 and not block:
        return Scaling(integers, numbers, scales.reshape(()), zeros.reshape(()), 0, 0)
    return Scaling(integers, numbers, scales, zeros, ops.OneAxis(node).axis_of(len(shape_of(source) or ())), block)


def same_scale(a: Scaling, b: Scaling) -> bool:
    """Whether two mappings have the same scales, bit for bit."""
    return (
        a.numbers == b.numbers
        and (a.axis, a.block) == (b.axis, b.block)
        and a.scale.shape == b.scale.shape
        and a.scale.tobytes() == b.scale.tobytes()
    )


def integer_of(bound: float, mapping: Scaling) -> np.ndarray:
    """The integers that QuantizeLinear makes of a number, before they saturate.

    Args:
        bound: The number, perhaps infinite.
        mapping: The mapping, of float32, with positive scales.
    """
    with np.errstate(over="ignore"):
        return np.asarray(np.rint(np.float32(bound) / mapping.scale) + mapping.zero_point)


NEAR_AN_INTEGER = 1e-3
"""How far a bound may be from an integer: so much results without rounding differ, which verification compares too."""


def is_near_an_integer(bound: float, mapping: Scaling) -> bool:
    """Whether a bound is infinite, or what QuantizeLinear rounds to an integer is one, as near as floats tell.

    Args:
        bound: The number.
        mapping: The mapping, of float32, with positive scales.
    """
    if not np.isfinite(bound):
        return True
    with np.errstate(over="ignore"):
        exact = np.asarray(np.float64(bound) / mapping.scale.astype(np.float64))
    return bool(np.all(np.abs(exact - np.rint(exact)) <= NEAR_AN_INTEGER))


def is_faithful(mapping: Scaling) -> bool:
    """Whether every integer that is dequantized and quantized again stays the same (see `FAITHFUL`)."""
    bits, least, most = FAITHFUL[mapping.numbers]
    scales = mapping.scale.astype(np.float64)
    return mapping.integers.bitwidth <= bits and bool(np.all((scales >= least) & (scales <= most)))


SHIFT = 128
"""How much larger unsigned integers are than those with a sign that they stand for."""


def as_unsigned(value: ir.Value | None) -> ir.Value:
    """A constant of the same integers, `SHIFT` larger: uint8 instead of int8.

    Args:
        value: A constant of int8; None is a zero point of 0, which moves with its integers.
    """
    content = np.zeros((), np.int16) if value is None else array_of(value).astype(np.int16)
    return constant((content + SHIFT).astype(np.uint8))


def with_unsigned(node: ir.Node, places: Iterable[tuple[int, int]]) -> ir.Node:
    """A node of the same op with the same numbers, some constants of int8 as unsigned ones.

    Args:
        node: The node.
        places: Where it reads such constants, and the zero point of each.
    """
    operands = list(node.inputs)
    for pair in places:
        operands += [None] * (max(pair) + 1 - len(operands))
        for place in pair:
            operands[place] = as_unsigned(operands[place])
    return ops.copied(node, operands)

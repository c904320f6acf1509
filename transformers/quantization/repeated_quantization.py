"""What is dequantized and quantized again often comes back as the integers that it was."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import (
    FLOAT,
    Absent,
    Code,
    dtype,
    inputs,
    is_constant,
    keeps_rank,
    need,
    need_float32,
    optional,
    plain_attributes,
    scalar,
)
from ortopt.patterns.quantization import (
    NEAR_AN_INTEGER,
    RANGES,
    Scaling,
    dequantizer,
    is_dequantizer,
    is_faithful,
    need_no_other_sign,
    need_no_pairs,
    quantizer,
    same_scale,
    scaling,
)
from ortopt.patterns.quantized_kernels import QUANTIZERS
from ortopt.rule import Elimination, Forwarded, Match, RewriteRule

LONGEST = 2
"""How many factors may stand between the two."""

FACTORS = (2.0**-8, 2.0**8)
"""Between these, so many factors keep what is dequantized from overflow and from subnormal numbers."""


class QdqFinalCleanup(Elimination):
    """``QuantizeLinear(DequantizeLinear(q))`` with one scale and zero point → ``q``.

    The result is exact: see `ortopt.patterns.quantization.FAITHFUL`. ``DequantizeLinear(QuantizeLinear(x))`` always
    stays, because its rounding and saturation belong to the model. ONNX Runtime removes it on request.
    """

    roots = QUANTIZERS

    def match(self, root: ir.Node) -> Forwarded:
        """The same constant mapping on the way there and back."""
        dequantize = dequantizer(inputs(root, 1)[0])
        there, back = scaling(dequantize), scaling(root)
        need(there.integers == back.integers, "the quantized types differ", root)
        need(same_scale(there, back), "the scales differ: it rounds", root)
        need(bool(np.array_equal(there.zero_point, back.zero_point)), "the zero points differ", root)
        need(is_faithful(there), "the scale is too large or too small for the way back to be exact", root)
        return Forwarded((root,), inputs(dequantize, 1)[0])


class DoubleQdqPairsRemover(RewriteRule[Match]):
    """``Quantize(Dequantize(Quantize(x)))`` to other integers of the same scale → ``Quantize(x)``.

    The result is exact: both round x / scale in the same way, and the second saturates wherever the first does. ONNX
    Runtime also drops pairs with different scales, and computes a new scale for the remaining one, which changes the
    rounding of the model.
    """

    after = ("qdq_final_cleanup",)
    roots = QUANTIZERS
    lookback = 3

    def match(self, root: ir.Node) -> Match:
        """Equal scales, and a first range that holds the second."""
        dequantize = dequantizer(inputs(root, 1)[0])
        first = quantizer(inputs(dequantize, 1)[0])
        (x,) = inputs(first, 1)
        inner, between, outer = scaling(first), scaling(dequantize), scaling(root)
        need(same_scale(inner, between) and same_scale(between, outer), "the scales differ: it rounds twice", root)
        same = inner.integers == between.integers and bool(np.array_equal(inner.zero_point, between.zero_point))
        need(same, "the first pair does not give back what it took", first)
        need(is_faithful(inner) and is_faithful(outer), "the scale is too large or too small to be exact", root)
        holds = bool(np.all(inner.lowest <= outer.lowest) and np.all(inner.highest >= outer.highest))
        need(holds, "the first saturates earlier", first)
        producer = x.producer()
        is_unit = producer is not None and any(value and is_dequantizer(value.producer()) for value in producer.inputs)
        need(not is_unit, "a quantized kernel gives the first type", first)
        return Match((first, dequantize, root), lambda: ops.copied(root, [x, *root.inputs[1:]]))


class RequantizationElimination(Elimination):
    """``Quantize(Dequantize(q) · c)`` → ``q``, where the scales differ by the factor c. So for ``/ c`` and QLinearMul.

    The division by 6 of a hard-swish and the scale of attention's operands are quantized so: the range of the result is
    that of the operand, times c, and so are the steps. The result is exact: each of the integers is computed ahead of
    time, and comes back as itself, far from where it would be rounded to its neighbour.
    """

    after = ("qdq_final_cleanup", "qdq_propagation")
    roots = (*QUANTIZERS, "com.microsoft::QLinearMul")
    lookback = LONGEST + 1

    def match(self, root: ir.Node) -> Forwarded:
        """Two mappings whose steps differ by the factors between them."""
        plain_attributes(root)
        if root.op_type == "QLinearMul":
            return _multiplied(root)
        dequantize, factor = _scaled(inputs(root, 1)[0])
        plain_attributes(dequantize)
        there, back = scaling(dequantize), scaling(root)
        _check_unchanged(there, factor, back, root)
        need_no_pairs(root)
        need_no_other_sign(root, there.integers)
        return Forwarded((root,), inputs(dequantize, 1)[0])


def _multiplied(root: ir.Node) -> Forwarded:
    """A kernel that multiplies by one constant number."""
    x, factor, y = 0, 3, 6
    integers, other = inputs(root, 4)[x], inputs(root, 4)[factor]
    if is_constant(integers):
        x, factor, integers, other = factor, x, other, integers
    need(keeps_rank(other, integers), "the factor would raise the rank", other)
    there, by, back = _mapping(root, x + 1), _mapping(root, factor + 1), _mapping(root, y)
    number = (scalar(other) - float(by.zero_point)) * float(by.scale)
    need(FACTORS[0] <= number <= FACTORS[1], "the factor is negative, zero, very small or very large", other)
    _check_unchanged(there, number, back, root)
    return Forwarded((root,), integers)


def _mapping(root: ir.Node, first: int) -> Scaling:
    """What a scale and a zero point among the inputs of a kernel say."""
    scale, zero = inputs(root, first + 1)[first], optional(root, first + 1)
    zero_point = np.zeros((), np.int64) if zero is None else np.asarray(scalar(zero), np.int64)
    need_float32(scale)
    return Scaling(dtype(root.outputs[0]), FLOAT, np.asarray(scalar(scale), np.float32), zero_point, 0, 0)


def _check_unchanged(there: Scaling, factor: float, back: Scaling, root: ir.Node) -> None:
    """Refuse unless every integer that is scaled comes back as itself."""
    need(there.integers == back.integers, "the quantized types differ", root)
    need(there.numbers == back.numbers == FLOAT, "the numbers are not float32", root, code=Code.TYPE)
    need(there.scale.ndim == 0 and back.scale.ndim == 0, "there are several scales", root)
    need(bool(there.zero_point == back.zero_point), "the zero points differ", root)
    need(is_faithful(there) and is_faithful(back), "a scale is too large or too small to be exact", root)
    need(_is_identity(there, factor, back), "it rounds to other integers", root)


def _scaled(numbers: ir.Value) -> tuple[ir.Node, float]:
    """The DequantizeLinear that numbers come from, and the product of the constant factors on the way."""
    factor = 1.0
    for _ in range(LONGEST + 1):
        node = numbers.producer()
        if node is not None and is_dequantizer(node):
            return node, factor
        if node is None or node.domain != "" or node.op_type not in ("Div", "Mul"):
            break
        plain_attributes(node)
        numbers, other = inputs(node, 2)
        if node.op_type == "Mul" and _is_factor(numbers):
            numbers, other = other, numbers
        number = _factor(other, numbers)
        need(FACTORS[0] <= number <= FACTORS[1], "the factor is negative, zero, very small or very large", other)
        factor = factor * number if node.op_type == "Mul" else factor / number
    raise Absent("no DequantizeLinear comes before, through constant factors", numbers)


def _is_factor(value: ir.Value) -> bool:
    """Whether a value is a constant, or dequantized from one."""
    node = value.producer()
    return is_constant(value) or (is_dequantizer(node) and node is not None and is_constant(node.inputs[0]))


def _factor(value: ir.Value, numbers: ir.Value) -> float:
    """The one number of a constant, perhaps dequantized, that scales other numbers."""
    node = value.producer()
    if node is None or not is_dequantizer(node):
        number, content = scalar(value), value
    else:
        plain_attributes(node)
        mapping, content = scaling(node), inputs(node, 1)[0]
        need(mapping.scale.ndim == 0, "there are several scales", node)
        number = (scalar(content) - float(mapping.zero_point)) * float(mapping.scale)
    need(keeps_rank(content, numbers), "the factor would raise the rank", content)
    return number


def _is_identity(there: Scaling, factor: float, back: Scaling) -> bool:
    """Whether each integer comes back as itself, with a reserve for all rounding of floats on the way."""
    low, high = RANGES[there.integers]
    steps = np.arange(low, high + 1, dtype=np.float64) - np.float64(there.zero_point)
    ratio = np.float64(there.scale) * factor / np.float64(back.scale)
    return bool(np.all(np.abs(steps * ratio - steps) <= NEAR_AN_INTEGER))

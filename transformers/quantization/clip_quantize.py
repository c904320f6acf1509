"""A Relu or a Clip before QuantizeLinear: it may cut off no more than that does, or integers can be cut off instead.

So an op that has a quantized kernel comes to stand beside its QuantizeLinear.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    inputs,
    is_constant,
    need,
    need_float32,
    need_present,
    only_user,
    opset,
    plain_attributes,
)
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.clamp import bounds_of
from ortopt.patterns.quantization import RANGES, integer_of, is_dequantizer, is_near_an_integer, scaling
from ortopt.patterns.quantized_kernels import QUANTIZERS, result, unit_before
from ortopt.rule import Match, RewriteRule

WITH_KERNELS = frozenset({"Add", "Conv", "Gemm", "MatMul", "Mul"})
CLIPS_INTEGERS = 12
"""The opset from which on Clip takes integers."""


class ClipQuantizeElimination(RewriteRule[Match]):
    """``Quantize(Relu(x))`` or ``Quantize(Clip(x, low, high))`` → ``Quantize(x)`` where the integers end sooner.

    Exact: both bounds are the least and the greatest integer, or beyond them.
    """

    after = ("relu_clip_fusion",)
    roots = QUANTIZERS

    def match(self, root: ir.Node) -> Match:
        """Bounds at or beyond those of the integers."""
        clip = unit_before(root, "Relu", "Clip")
        plain_attributes(root)
        x = inputs(clip, 1)[0]
        need_float32(x)
        mapping = scaling(root)
        need(bool(np.all(mapping.scale > 0)), "a scale is not positive", root)
        low, high = (0.0, math.inf) if clip.op_type == "Relu" else bounds_of(clip)
        least, greatest = RANGES[mapping.integers]
        lowest, highest = integer_of(low, mapping), integer_of(high, mapping)
        beyond = bool(np.all(lowest <= least) and np.all(highest >= greatest))
        need(beyond, "it cuts off numbers that have integers of their own", clip)
        for bound, nearest, end in ((low, lowest, least), (high, highest, greatest)):
            at_the_end = bool(np.any(nearest == end))
            need(not at_the_end or is_near_an_integer(bound, mapping), "a bound is between two integers", clip)
        return Match((clip, root), lambda: ops.copied(root, [x, *root.inputs[1:]]))


class ClipQuantizeReordering(RewriteRule[Match]):
    """``Quantize(Relu(op(Dequantize(x))))`` → ``Clip(Quantize(op(Dequantize(x))), zero point)``.

    So for Clip, with both bounds. Exact: rounding keeps the order of numbers, and those of a quantized op are finite.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("clip_quantize_elimination", "unsigned_quantization_conversion")
    roots = QUANTIZERS
    lookback = 4
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """Bounds among the integers, behind an op that has a quantized kernel."""
        clip = unit_before(root, "Relu", "Clip")
        need(opset(clip) >= CLIPS_INTEGERS, "Clip takes no integers before opset 12", root)
        y = result(root)
        unsigned = y.mapping.integers == ir.DataType.UINT8  # others become so in ONNX Runtime, where pairs are whole
        need(unsigned, "the integers have a sign, and kernels of such are slow", root)
        plain_attributes(clip)
        (x,) = inputs(clip, 1)
        only_user(x)
        _check_unit(x)
        low, high = (0.0, math.inf) if clip.op_type == "Relu" else bounds_of(clip)
        between = all(is_near_an_integer(bound, y.mapping) for bound in (low, high))
        need(between, "a bound is between two integers", clip)
        lowest, highest = RANGES[y.mapping.integers]
        least, greatest = (int(np.clip(integer_of(bound, y.mapping), lowest, highest)) for bound in (low, high))
        need(lowest < least or greatest < highest, "it cuts off nothing", clip)
        bounds = [np.asarray(bound, y.mapping.integers.numpy()) for bound in (least, greatest)]
        return Match((clip, root), lambda: _clipped(ops.copied(root, [x, *root.inputs[1:]]), bounds))


def _clipped(quantize: ir.Node, bounds: list[np.ndarray]) -> ir.Node:
    return ir.node("Clip", [quantize.outputs[0], *map(constant, bounds)])


def _check_unit(x: ir.Value) -> None:
    """Refuse numbers that are not those of an op with a quantized kernel, all finite."""
    op = x.producer()
    has_kernel = op is not None and op.domain == "" and op.op_type in WITH_KERNELS
    need_present(has_kernel, "no op with a quantized kernel comes before", x)
    assert op is not None
    operands = [value for value in op.inputs if value is not None]
    need(is_dequantizer(operands[0].producer()), "what comes before reads no integers", op)
    for value in operands:
        finite = is_dequantizer(value.producer()) or (is_constant(value) and bool(np.isfinite(array_of(value)).all()))
        need(finite, "what comes before may be infinite or NaN", value)

"""A Relu or a Clip before QuantizeLinear keeps an op from its quantized kernel; integers can be cut off instead."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import array_of, inputs, is_constant, need, need_present, only_user, opset, plain_attributes
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.clamp import bounds_of
from ortopt.patterns.quantization import RANGES, integer_of, is_dequantizer, is_near_an_integer
from ortopt.patterns.quantized_kernels import QUANTIZERS, result, unit_before
from ortopt.rule import RewriteRule

WITH_KERNELS = frozenset({"Add", "Conv", "Gemm", "MatMul", "Mul"})
CLIPS_INTEGERS = 12
"""The opset from which on Clip takes integers."""


class Found(Struct, frozen=True):
    """The nodes, the numbers that are quantized, and the least and the greatest integer."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    least: int
    greatest: int
    integers: ir.DataType


class ClipQuantizeReordering(RewriteRule[Found]):
    """``Quantize(Relu(op(Dequantize(x))))`` → ``Clip(Quantize(op(Dequantize(x))), zero point)``.

    So for Clip, with both bounds. Exact: rounding keeps the order of numbers, and those of a quantized op are finite.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("clip_quantize_elimination", "unsigned_quantization_conversion")
    roots = QUANTIZERS
    lookback = 4
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
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
        return Found((clip, root), x, least, greatest, y.mapping.integers)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the QuantizeLinear, and the Clip of integers."""
        root = found.nodes[-1]
        quantize = ops.copied(root, [found.x, *root.inputs[1:]])
        kind = found.integers.numpy()
        bounds = (constant(np.asarray(bound, kind)) for bound in (found.least, found.greatest))
        return ir.Node("", "Clip", [quantize.outputs[0], *bounds])


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

"""Two kernels of integers are slower than the floats that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.framework import fusions
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Code,
    Refusal,
    array_of,
    attribute,
    dims,
    dtype,
    is_never_zero,
    need,
    need_known,
    optional,
    plain_attributes,
)
from ortopt.options import Fusions, Numerics, Target, TransformerLevel
from ortopt.patterns.quantization import DEQUANTIZE, QUANTIZE
from ortopt.patterns.quantized_kernels import ORDINARY
from ortopt.rule import Match, RewriteRule
from ortopt.transformers.quantization._kernels import LAST_AXIS_BY_DEFAULT, check_length, check_step

KEPT: Final[Mapping[str, tuple[str, ...]]] = {
    "AveragePool": ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"),
    "Softmax": ("axis",),
}
"""The ops of floats, and which attributes of their kernels are theirs."""


class Scale(Struct, frozen=True):
    """Scale and zero point, each one number."""

    scale: np.ndarray
    zero_point: np.ndarray

    def node(self, op: str, data: ir.Value) -> ir.Node:
        """A QuantizeLinear or DequantizeLinear by them."""
        return ir.Node("", op, [data, constant(self.scale), constant(self.zero_point)])


class QlinearDecomposition(RewriteRule[Match]):
    """``QLinearSoftmax(q)`` → ``Quantize(Softmax(Dequantize(q)))``. So for QLinearAveragePool.

    The table of costs says where the kernel is slower than the floats. ``unit_sum_conversion`` keeps them apart from
    their quantization then, of which ONNX Runtime would make the kernel again when it loads the model.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("com.microsoft::QLinearAveragePool", "com.microsoft::QLinearSoftmax")
    numerics = Numerics.QUANTIZED
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """A kernel that no run would make, as slow as it is, where it gives what floats give."""
        options = scope.of_node(root).options
        need(
            options.fusions is Fusions.DEFAULT,
            "kernels are taken or left whatever they cost (--fusions)",
            root,
            code=Code.COST,
        )
        attributes = plain_attributes(root)
        need(dtype(_integers(root)) == ir.DataType.UINT8, "unsigned integers alone have been measured", root)
        before, behind = _scale(root, 1), _scale(root, 3)
        op = root.op_type.removeprefix("QLinear")
        kept = tuple(attributes[name] for name in KEPT[op] if name in attributes)
        if op == "Softmax":
            _check_softmax(root, behind)
        else:
            _check_pool(root)
        try:
            fusions.check_wanted(root, options, smaller=True)
        except fusions.Unwanted:
            return Match((root,), lambda: behind.node(QUANTIZE, _floats(root, before, op, kept)))
        raise Refusal("the kernel is as fast as the floats", root)


def _floats(root: ir.Node, before: Scale, op: str, attributes: Sequence[ir.Attr]) -> ir.Value:
    """What the op of floats makes of the dequantized integers."""
    numbers = before.node(DEQUANTIZE, _integers(root)).outputs[0]
    return ir.Node("", op, [numbers], attributes).outputs[0]


def _integers(root: ir.Node) -> ir.Value:
    return need_known(optional(root, 0), "its operand is left out", root)


def _scale(root: ir.Node, first: int) -> Scale:
    """A scale, and the zero point that follows."""
    number, given = optional(root, first), optional(root, first + 1)
    number = need_known(number, "its scale is left out", root)
    scale = array_of(number)
    zero = np.zeros((), np.uint8) if given is None else array_of(given)
    need(scale.dtype == np.float32 and scale.size == 1 and zero.size == 1, "there are several scales", root)
    least, most = ORDINARY
    ordinary = least <= scale.item() <= most
    need(ordinary, "a scale is negative, zero, or beyond what kernels can multiply", root)
    return Scale(scale.reshape(()), zero.reshape(()))


def _check_softmax(root: ir.Node, y: Scale) -> None:
    flattens = attribute(root, "opset", 0) < LAST_AXIS_BY_DEFAULT
    need(not flattens, "before opset 13 it flattens what is behind the axis", root)
    check_step(y.scale, root)
    check_length(dims(_integers(root)), ops.OneAxis(root).stated_axis, y.scale.item(), root)


def _check_pool(root: ir.Node) -> None:
    need(attribute(root, "channels_last", 0) == 0, "its channels are last", root)
    need(attribute(root, "ceil_mode", 0) == 0, "windows beyond the border are counted otherwise", root)
    sizes = dims(_integers(root))
    need(all(is_never_zero(size, root) for size in sizes[2:]), "a mean of nothing", root)

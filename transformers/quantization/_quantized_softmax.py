"""Where the kernel of a Softmax of integers, which works with a table of exponentials, gives what floats do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import Dim, Refusal, is_never_zero, need
from ortopt.patterns.quantized_kernels import SAME_UNIT

LAST_AXIS_BY_DEFAULT = 13
"""The opset from which on Softmax is along one axis, by default the last."""

LONGEST = 1 << 14
"""Up to this length rounding of the sum moves no share by a step."""

STEPS = 100
"""How many steps of the result, for each term, the kernel multiplies its largest exponential by without overflow."""


def check_step(step: np.ndarray, at: ir.Node | ir.Value) -> None:
    """Refuse a step of the result of which one is no multiple: the kernel cuts off the rest."""
    scale = np.float32(step)
    steps = np.floor(np.float32(1) / scale)
    whole = abs(float(steps) * float(scale) - 1) <= SAME_UNIT
    need(whole, "the kernel takes a step of which one is no multiple for a larger one", at)


def check_length(sizes: Sequence[Dim], axis: int, step: float, at: ir.Node) -> None:
    """Refuse sizes at which the kernel fails, overflows, or rounds otherwise.

    Args:
        sizes: The dimensions of the operand.
        axis: The axis of the Softmax.
        step: The quantization step of the result.
        at: The Softmax.
    """
    need(-len(sizes) <= axis < len(sizes), "the axis is out of range", at)
    need(all(is_never_zero(size, at) for size in sizes), "the kernel fails where there are no elements", at)
    length = sizes[axis]
    if not isinstance(length, int):
        raise Refusal("the length is not known, and of one element the kernel makes 0", at)
    need(length <= LONGEST, "the sum has too many terms", at)
    need(STEPS * length * step >= 1, "the kernel overflows for so few elements", at)

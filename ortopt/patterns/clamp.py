"""Values that are kept between two bounds."""

from __future__ import annotations

import math

import onnx_ir as ir

from ortopt.analysis.signs import is_never_negative_zero
from ortopt.graph.match import Refusal, attribute, before, is_op, opset, optional, scalar
from ortopt.semantics.op_traits import MOVING
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM

FLOAT32_LOWEST, FLOAT32_HIGHEST = -3.4028234663852886e38, 3.4028234663852886e38


def bounds_of(clip: ir.Node) -> tuple[float, float]:
    """The bounds of a Clip; infinite where it has none.

    Raises:
        Refusal: If a bound is no constant, or the lower one is not below the other.
    """
    low, high = stated_bounds(clip)
    if not low < high:
        raise Refusal("the bounds are out of order", clip)
    return low, high


def stated_bounds(clip: ir.Node) -> tuple[float, float]:
    """As `bounds_of`, in whatever order they are."""
    if opset(clip) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
        return attribute(clip, "min", FLOAT32_LOWEST), attribute(clip, "max", FLOAT32_HIGHEST)
    minimum, maximum = optional(clip, 1), optional(clip, 2)
    low = -math.inf if minimum is None else scalar(minimum)
    return low, math.inf if maximum is None else scalar(maximum)


SUMS = frozenset(
    ("Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization")
) | frozenset(("MatMul", "ReduceMean", "ReduceSum", "Sub", "Sum"))
MAX_MOVES = 6


def zeros_have_no_sign(value: ir.Value) -> bool:
    """Whether nothing is lost if a -0.0 becomes 0.0: there is none, or it is a sum's, where rounding decides.

    ``Max(-0.0, 0.0)`` is 0.0, and a Relu or a Clip lets -0.0 through.

    Args:
        value: The operand of a Max or a Min.
    """
    if is_never_negative_zero(value):
        return True
    return is_op(before(value, *MOVING, most=MAX_MOVES).producer(), *SUMS)

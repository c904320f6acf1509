"""Numpy kernels that hold for some operands only: what they leave alone is ONNX Runtime's."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ortopt.evaluation.call import Array, Call, UnsupportedHereError
from ortopt.semantics.opset_changes import REGION_IS_AN_INPUT_FROM

_MAX_POWERS: Final = 64
"""Fewer elements cost less here than a session of ONNX Runtime."""

_SURE: Final = 0.4
"""Of the last place of a float32: a library that is wrong by less than 0.6 of it rounds so as the exact result."""

_SPECIAL_EXPONENTS: Final = (2.0, 3.0)
"""ONNX Runtime multiplies instead, and rounds each product."""

_RESIZED_RANKS: Final = {"nearest": range(1, 6), "linear": range(2, 5), "cubic": range(4, 5)}
"""What ONNX Runtime resizes at all, by mode."""


def power(call: Call) -> tuple[Array, ...]:
    """A few powers of float32 that lie so near to one float32 that every library's function gives this one.

    Raises:
        UnsupportedHereError: It is not computed here.
    """
    base, exponent = call.array(0), call.array(1)
    if base.dtype != np.float32 or exponent.dtype != np.float32 or call.opset < 7:
        raise UnsupportedHereError(f"Pow of {base.dtype} and {exponent.dtype}")
    shape = np.broadcast_shapes(base.shape, exponent.shape)
    if math.prod(shape) > _MAX_POWERS:
        raise UnsupportedHereError("many powers")
    pairs = np.broadcast(base, exponent)
    powers = [_power(float(x), float(y)) for x, y in pairs]
    return (np.array(powers, np.float32).reshape(shape),)


def _power(x: float, y: float) -> float:
    if y in _SPECIAL_EXPONENTS:
        raise UnsupportedHereError("ONNX Runtime multiplies")
    try:
        exact = math.pow(x, y)
    except (ValueError, OverflowError) as error:
        raise UnsupportedHereError("a power that is none") from error
    rounded = np.float32(exact)
    if not np.finfo(np.float32).tiny <= abs(rounded) < np.inf:
        raise UnsupportedHereError("a power that is no normal number")
    if abs(exact - float(rounded)) > _SURE * float(np.spacing(abs(rounded))):
        raise UnsupportedHereError("a power between two numbers")
    return float(rounded)


def resized(call: Call) -> tuple[Array, ...]:
    """An image resized to the size that it has.

    Raises:
        UnsupportedHereError: It is not computed here.
    """
    attributes = call.attributes
    sizes_at = 3
    if call.opset < REGION_IS_AN_INPUT_FROM["Resize"] or not call.has(sizes_at):
        raise UnsupportedHereError("Resize by scales")
    operand = call.operand(0)
    if (call.has(2) and call.operand(2).shape != (0,)) or tuple(call.integers(sizes_at)) != operand.shape:
        raise UnsupportedHereError("Resize to another size")
    mode = attributes.get_string("mode", "nearest")
    if operand.array.dtype != np.float32 or len(operand.shape) not in _RESIZED_RANKS.get(mode, ()):
        raise UnsupportedHereError("Resize that ONNX Runtime may not know")
    if (
        0 in operand.shape
        or "axes" in attributes
        or "antialias" in attributes
        or attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    ):
        raise UnsupportedHereError("Resize of a region")
    return (operand.array,)

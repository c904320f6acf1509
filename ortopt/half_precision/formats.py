"""The 16-bit formats that a model can be converted to, and what constants are in them: too large, vanishing, masks."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import semantics


@dataclass(frozen=True, slots=True)
class Format:
    """A 16-bit floating-point format.

    Attributes:
        dtype: Its dtype.
        type_text: Its tensor type in ONNX's spelling.
        largest: Its largest finite number.
        smallest: Its smallest number of full precision.
        mask: What stands for minus infinity in a mask: two masks and a score can be added without an overflow.
        integers: Up to here every integer is exact.
        tolerance: The error of an output, relative to the scale of its slices, up to which a model is accepted.
    """

    dtype: ir.DataType
    type_text: str
    largest: float
    smallest: float
    mask: float
    integers: int
    tolerance: float


FLOAT16: Final = Format(ir.DataType.FLOAT16, "tensor(float16)", 65504.0, 2.0**-14, 65504.0 / 2, 1 << 11, 1e-2)
BFLOAT16: Final = Format(
    ir.DataType.BFLOAT16, "tensor(bfloat16)", 3.3895313892515355e38, 2.0**-126, 3.3895313892515355e38 / 2, 1 << 8, 5e-2
)


_PIECE: Final = 1 << 22

_SURELY_A_MASK: Final = 9e8
"""From here on a number is no weight: masks have -1e9, -1e30, the least finite number."""

_BOUNDS: Final = frozenset({"Clip", "Max", "Min", "Pad", "Where"})
"""Ops that compare with a large number, or put it in a place: a smaller one that is large does the same."""

_DIVISORS: Final = frozenset({"Add", "Clip", "Div", "Max", "Min", "Sub"})
"""Ops that keep a number away from 0 by a small one: it must not be 0 itself, nor lose digits."""

_SOME_DIGITS: Final = 2.0**-7
"""What is left of the smallest number of full precision where numbers have three binary digits yet."""


class Fit(enum.Enum):
    """How a constant fits into 16 bits."""

    FITS = "fits"
    MASK = "mask"
    TOO_LARGE = "is beyond the range of 16 bits"
    TOO_SMALL = "vanishes in 16 bits"


class Magnitudes:
    """The magnitudes of constants, each read once.

    Args:
        form: The format.
    """

    def __init__(self, form: Format) -> None:
        self._form = form
        self._known: dict[int, tuple[ir.TensorProtocol, tuple[float, float]]] = {}

    def fit(self, value: ir.Value, user: ir.Node | None) -> Fit:
        """How a value fits as an operand of a node; what is no constant fits.

        Args:
            value: The value.
            user: The node that reads it; None is a graph, which returns it.
        """
        tensor = semantics.constant_tensor(value)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            return Fit.FITS
        return self._judged(*self._extremes(tensor), user)

    def fit_of(self, tensor: ir.TensorProtocol) -> Fit:
        """How a tensor fits, wherever it is read."""
        return self._judged(*self._extremes(tensor), None)

    def exceeds(self, tensor: ir.TensorProtocol) -> bool:
        """Whether a tensor has finite numbers beyond the range."""
        return self._extremes(tensor)[0] > self._form.largest

    def _extremes(self, tensor: ir.TensorProtocol) -> tuple[float, float]:
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, extremes(tensor)
        return self._known[id(tensor)][1]

    def _judged(self, largest: float, smallest: float, user: ir.Node | None) -> Fit:
        op = "" if user is None or user.domain else user.op_type
        if largest > self._form.largest:
            return Fit.MASK if op in _BOUNDS or smallest >= _SURELY_A_MASK else Fit.TOO_LARGE
        least = self._form.smallest if op in _DIVISORS else self._form.smallest * _SOME_DIGITS
        return Fit.TOO_SMALL if 0 < largest < least else Fit.FITS


def extremes(tensor: ir.TensorProtocol) -> tuple[float, float]:
    """The largest and the smallest finite magnitude of a tensor, of what is not 0.

    A mask has zeros beside its large numbers; a weight that is out of range has all sorts of numbers.
    """
    flat = np.asarray(tensor.numpy()).reshape(-1)
    largest = 0.0
    smallest = np.inf
    with np.errstate(invalid="ignore"):
        for start in range(0, flat.size, _PIECE):
            sizes = np.abs(flat[start : start + _PIECE])
            sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
            if sizes.size:
                largest = max(largest, float(sizes.max()))
                smallest = min(smallest, float(sizes.min()))
    return largest, smallest

"""The 16-bit formats that a model can be converted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import onnx_ir as ir


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

__all__ = ["BFLOAT16", "FLOAT16", "Format"]

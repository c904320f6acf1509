"""NaN and infinities that have spread: what rewrites for finite numbers only may do to them.

A form such as a convolution over blocks of pixels multiplies by zeros what the original does not read, and 0 · ∞ is
NaN. So where the original holds a NaN or an infinity, such a result may hold one at the places around it, too. That is
all that it may do: where both are finite they are compared as always, a finite number never stands for one that is not,
and where nothing in the original's inputs or in an output is NaN or infinite, nothing in that output of the result is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortopt.verification.comparison import is_float


def accept_spreading(expected: Any, got: Any, type_: str, *, special: bool) -> tuple[Any, int]:
    """What was expected, with what was got wherever that is NaN or infinite and may be.

    Args:
        expected: What the original gave.
        got: What the result gave.
        type_: The output's type, in ONNX's spelling.
        special: Whether the inputs hold NaN or infinities.

    Returns:
        What to compare with; and at how many places the original is finite, where the result is not.
    """
    if not is_float(expected, type_) or not is_float(got, type_) or expected.shape != got.shape:
        return expected, 0
    finite = np.isfinite(expected)
    if not special and finite.all():
        return expected, 0
    lost = ~np.isfinite(got)
    return np.where(lost, got, expected).astype(expected.dtype), int((lost & finite).sum())


__all__ = ["accept_spreading"]

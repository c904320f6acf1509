"""How large an image is, at least, as far as a pass must know to say that another form pays."""

from __future__ import annotations

import math
from typing import Final

import onnx_ir as ir

from ortopt.graph.match import dims

_FREE: Final = 16
"""The length of an axis that is not fixed: fewer channels, rows or columns of an image are rare."""


def elements_of_an_image(value: ir.Value) -> int:
    """How many elements an image of a batch has, or is likely to have at least.

    Args:
        value: The batch.

    Raises:
        Refusal: The rank is unknown.
    """
    return math.prod(dim if isinstance(dim, int) else _FREE for dim in dims(value)[1:])


__all__ = ["elements_of_an_image"]

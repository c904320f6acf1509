"""Constants of linear ops: computed in double precision, rounded once to their type, and refused where that fails."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import FLOATS, Refusal, array_of, is_constant, need, tensor_of
from ortopt.onnx_ir_internals import use_count

Array: TypeAlias = np.ndarray[Any, Any]

MAX_BYTES = 1 << 25
"""Larger weights stay mapped from the file: a changed copy would be in memory."""

SMALL_BYTES = 1 << 14
"""Biases are often alike, and shared: so few bytes may be stored anew."""

MAX_WORK = 1 << 30
"""Multiplications that a product of weights may take: about a second."""

SMALLEST = {
    ir.DataType.FLOAT: 2.0**-126,
    ir.DataType.DOUBLE: 2.0**-1022,
    ir.DataType.FLOAT16: 2.0**-14,
    ir.DataType.BFLOAT16: 2.0**-126,
}
"""Numbers from here on have all their digits."""

_BLOCK = 256
"""So many rows of a matrix are converted at a time."""


def rounded(content: Array, kind: ir.DataType, about: object) -> Array:
    """Numbers in an element type.

    Args:
        content: The numbers.
        kind: The type.
        about: The value or node that it is about.

    Raises:
        Refusal: If one is not finite in it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        result: Array = content.astype(kind.numpy())
    need_finite(about, result)
    return result


def scaled(value: ir.Value | None, factor: Array) -> Array:
    """A scaled constant, if every number in it stays finite and keeps all its digits.

    Args:
        value: Weights, or a bias, that nothing else uses, or that are small.
        factor: What they are scaled with, which broadcasts to them.

    Raises:
        Refusal: If they cannot be scaled.
    """
    if value is None or not is_constant(value):
        raise Refusal("the weights are no constant", value)
    tensor = tensor_of(value)
    need(tensor.dtype in FLOATS, "the weights are no floats", value)
    private = use_count(value) == 1 or tensor.nbytes <= SMALL_BYTES
    need(private and not value.is_graph_output(), "the weights are used elsewhere", value)
    need(tensor.nbytes <= MAX_BYTES, "the weights are large", value)
    content = array_of(value)
    result = times(content, factor)
    magnitudes = np.abs(result)
    fine = np.isfinite(magnitudes) & ((magnitudes >= SMALLEST[tensor.dtype]) | (content == 0))
    need(bool(fine.all()), "a weight would overflow or vanish", value)
    return result


def times(content: Array, factor: Array) -> Array:
    """A product in float64, rounded to the type of the content: block by block, since a whole one in float64 is slow.

    Args:
        content: Weights.
        factor: What they are multiplied with, which broadcasts to them.
    """
    product = np.empty(content.shape, content.dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        np.multiply(content, factor, out=product, dtype=np.float64, casting="unsafe")
    return product


def row_product(row: Array, matrix: Array) -> Array:
    """A row times a matrix, in double precision, of which the matrix needs no copy as a whole.

    Args:
        row: As many numbers as the matrix has rows.
        matrix: The matrix.
    """
    total = np.zeros(matrix.shape[1])
    for start in range(0, len(row), _BLOCK):
        rows = slice(start, start + _BLOCK)
        total += row[rows] @ matrix[rows].astype(np.float64)
    return total


def need_finite(about: object, *arrays: Array) -> None:
    """Refuse folded numbers that are not finite.

    Args:
        about: The value or node that it is about.
        arrays: The numbers.

    Raises:
        Refusal: If one is not.
    """
    finite = all(bool(np.isfinite(array).all()) for array in arrays)
    need(finite, "a folded number would not be finite", about)

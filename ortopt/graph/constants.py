"""Questions about constants: whether a value is one, and what it holds; refused with a reason (`Refusal`)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.graph.refusal import Refusal

FLOAT, FLOAT16, DOUBLE, BFLOAT16 = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.DOUBLE,
    ir.DataType.BFLOAT16,
)
FLOATS = frozenset({FLOAT, FLOAT16, DOUBLE, BFLOAT16})
"""The element types that round: real arithmetic holds in them up to rounding, and for nothing else."""

EPSILONS = {FLOAT: 2.0**-23, FLOAT16: 2.0**-10, DOUBLE: 2.0**-52, BFLOAT16: 2.0**-7}
"""The distance from 1 to the next number, by element type."""


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is the same in every run."""
    return semantics.constant_tensor(value) is not None


def tensor_of(value: ir.Value | None) -> ir.TensorProtocol:
    """The tensor that a value always is.

    Raises:
        Refusal: If it is no constant, or may be overridden by a caller.
    """
    tensor = semantics.constant_tensor(value)
    if tensor is None:
        raise Refusal("it is not a constant", value)
    return tensor


def array_of(value: ir.Value | None) -> np.ndarray:
    """The content of a constant as a read-only array, without a copy where the tensor allows it.

    Raises:
        Refusal: If the value is no constant.
    """
    return np.asarray(tensor_of(value).numpy())


SMALL = 1024


def small_array(value: ir.Value | None) -> np.ndarray:
    """The content of a constant of at most `SMALL` elements.

    Raises:
        Refusal: If it is no constant, or larger.
    """
    tensor = tensor_of(value)
    if tensor.size > SMALL:
        raise Refusal("the constant is large", value)
    return np.asarray(tensor.numpy())


def integers(value: ir.Value | None) -> tuple[int, ...]:
    """The content of a constant integer tensor of rank 0 or 1.

    Raises:
        Refusal: If it is no such constant.
    """
    array = small_array(value)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise Refusal("it is not a list of integers", value)
    return tuple(int(item) for item in array.reshape(-1))


def scalar(value: ir.Value | None) -> float:
    """The one number of a constant with one element, of any rank.

    Raises:
        Refusal: If it is no such constant.
    """
    tensor = tensor_of(value)
    if tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        raise Refusal("it is not one number", value)
    return float(np.asarray(tensor.numpy()).reshape(-1)[0])


def is_scalar(value: ir.Value | None, expected: float, rel_tol: float = 0.0) -> bool:
    """Whether a value is a constant with one element that is `expected`, rounded to the constant's own type.

    Args:
        value: A value.
        expected: The number; compared within two units in the last place of the constant's type.
        rel_tol: A relative error to allow beyond that, for constants that people write with few digits.
    """
    tensor = semantics.constant_tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return False
    array = np.asarray(tensor.numpy()).reshape(-1)
    if array.dtype.kind in "iub":
        return float(array[0]) == expected
    with np.errstate(over="ignore"):
        rounded = np.asarray(expected, dtype=array.dtype)
    content, wanted = float(array[0]), float(rounded)
    allowed = max(rel_tol, 2 * EPSILONS.get(tensor.dtype, 0.0))
    return content == wanted or abs(content - wanted) <= allowed * abs(wanted)

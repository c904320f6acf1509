"""Reshape, Flatten, Squeeze, Unsqueeze and Identity between groups: another shape of the same memory.

In a session of its own such a node would copy its operand from one buffer to another, and cost a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.runtime.execution.executables import Executable
from ortopt.runtime.onnxruntime_internals import value_class
from ortopt.runtime.values.tensors import has_no_array, is_plain, to_ort, type_text
from ortopt.semantics.op_traits import RESHAPING

if TYPE_CHECKING:
    import onnxruntime

Dims = tuple[int, ...]
Reshaping = Callable[[Dims], Dims]
"""The sizes of a result by those of its operand; raises ValueError where the operand does not fit."""

_COPIES: Final = RESHAPING | {"Identity"}


class ZeroCopyReshape:
    """Gives a tensor another shape.

    Args:
        reshaping: Which.
        session: What runs the node where that fails, with ONNX Runtime's own error.
    """

    __slots__ = ("_reshaping", "_session", "_tensor")

    def __init__(self, reshaping: Reshaping, session: Executable) -> None:
        self._reshaping = reshaping
        self._session = session
        self._tensor = value_class()

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Make the view, which keeps the memory alive."""
        value = values[0]
        if type(value) is self._tensor and value.device_name() in {"cpu", "Cpu", "CPU"}:
            array = value.numpy()
            try:
                return (to_ort(array.reshape(self._reshaping(array.shape))),)
            except ValueError:
                pass
        return self._session(values, options)


def reshaping_of(node: ir.Node) -> Reshaping | None:
    """What a node does to the shape of its operand; None if it is no view, or not for sure."""
    if node.domain != "" or node.op_type not in _COPIES:
        return None
    operand = node.inputs[0]
    if operand is None or operand.dtype is None or not isinstance(operand.type, ir.TensorType):
        return None
    type_ = type_text(operand.dtype)
    if not is_plain(type_) or has_no_array(type_) or semantics.constant_tensor(operand) is not None:
        return None
    if node.op_type == "Identity":
        return lambda dims: dims
    if node.op_type == "Flatten":
        axis = node.attributes.get_int("axis", 1)
        return lambda dims: _flattened(dims, axis)
    numbers = _numbers(node)
    if numbers is None:
        return None
    if node.op_type == "Reshape":
        return None if node.attributes.get_int("allowzero", 0) else lambda dims: _reshaped(dims, numbers)
    return (
        (lambda dims: _squeezed(dims, numbers)) if node.op_type == "Squeeze" else lambda dims: _widened(dims, numbers)
    )


def _numbers(node: ir.Node) -> Dims | None:
    """The target of a Reshape, or axes: a constant operand, or an attribute of older opsets."""
    if len(node.inputs) > 1:
        tensor = semantics.constant_tensor(node.inputs[1])
        return None if tensor is None else tuple(int(number) for number in tensor.numpy().reshape(-1))
    name = "shape" if node.op_type == "Reshape" else "axes"
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else tuple(attribute.as_ints())


def _flattened(dims: Dims, axis: int) -> Dims:
    place = axis + len(dims) if axis < 0 else axis
    if not 0 <= place <= len(dims):
        raise ValueError("the axis is out of range")
    return math.prod(dims[:place]), math.prod(dims[place:])


def _reshaped(dims: Dims, target: Dims) -> Dims:
    if any(size == 0 and i >= len(dims) for i, size in enumerate(target)):
        raise ValueError("there is no size to keep")
    sizes = [dims[i] if size == 0 else size for i, size in enumerate(target)]
    if sizes.count(-1) == 1 and 0 not in sizes:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(dims) // known
    return tuple(sizes)


def _squeezed(dims: Dims, axes: Dims) -> Dims:
    gone = _places(axes, len(dims))
    if any(dims[i] != 1 for i in gone):
        raise ValueError("the size is not 1")
    return tuple(size for i, size in enumerate(dims) if i not in gone)


def _widened(dims: Dims, axes: Dims) -> Dims:
    rank = len(dims) + len(axes)
    new = _places(axes, rank)
    rest = iter(dims)
    return tuple(1 if i in new else next(rest) for i in range(rank))


def _places(axes: Dims, rank: int) -> set[int]:
    """Axes counted from the front."""
    places = {axis + rank if axis < 0 else axis for axis in axes}
    if len(places) != len(axes) or any(not 0 <= place < rank for place in places):
        raise ValueError("an axis is out of range, or named twice")
    return places

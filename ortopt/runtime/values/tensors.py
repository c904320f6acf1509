"""Tensors between numpy, onnx-ir and ONNX Runtime, without copies where there is a way."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final, TypeGuard

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.errors import UsageError
from ortopt.runtime.onnxruntime_internals import (
    NativeValue,
    empty_tensor,
    native_device,
    owning_tensor,
    size_in_bytes,
    tensor_over,
    value_class,
)

PLAIN: Final = frozenset(dtype for dtype in ir.DataType if dtype not in {ir.DataType.UNDEFINED, ir.DataType.STRING})
"""Element types of numbers."""
NAMES: Final = {f"tensor({dtype.name.lower()})": dtype for dtype in ir.DataType if dtype is not ir.DataType.UNDEFINED}
"""Element types by ONNX's spelling of the tensor's type."""


def is_plain(type_: str | None) -> bool:
    """Whether values of a type, in ONNX's spelling, are OrtValues in a plan: tensors of numbers."""
    return NAMES.get(type_ or "") in PLAIN


def has_no_array(type_: str) -> bool:
    """Whether ONNX Runtime makes no array of tensors of a type, because numpy lacks it."""
    dtype = NAMES.get(type_)
    return dtype in PLAIN and not is_native(dtype)


def is_native(dtype: ir.DataType) -> bool:
    """Whether numpy has an element type."""
    return dtype.bitwidth >= 8 and dtype.numpy().isbuiltin == 1


def type_text(dtype: ir.DataType) -> str:
    """The type of a tensor, in ONNX's spelling."""
    return f"tensor({dtype.name.lower()})"


def write_type(proto: onnx.TypeProto, text: str) -> None:
    """Fill in a type from ONNX's spelling.

    Raises:
        UsageError: It is a type that cannot pass between groups.
    """
    inner = text[text.find("(") + 1 : -1]
    if text.startswith("seq("):
        proto.sequence_type.SetInParent()
        write_type(proto.sequence_type.elem_type, inner)
        return
    if text.startswith("optional("):
        proto.optional_type.SetInParent()
        write_type(proto.optional_type.elem_type, inner)
        return
    if not text.startswith("tensor(") or inner.upper() not in ir.DataType.__members__:
        raise UsageError(f"a value of type {text!r} cannot pass from one group to another")
    proto.tensor_type.elem_type = ir.DataType[inner.upper()].value


Array = np.ndarray[Any, Any]

_DLPACK: Final = frozenset(
    np.dtype(code) for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)
_BOOL: Final = np.dtype(bool)


def borrow(array: Array) -> NativeValue:
    """An OrtValue on a contiguous array of native numbers, which must outlive it."""
    return tensor_over(array, native_device("cpu"))


def to_ort(array: Any) -> Any:
    """What a plan holds for an array: an OrtValue that owns it, or the array itself if it holds no numbers.

    The array must not be written to afterwards.
    """
    if not isinstance(array, np.ndarray):
        if not isinstance(array, np.generic | int | float | bool | complex):
            return array
        array = np.asarray(array)
    dtype = array.dtype
    if dtype.kind in "OSUT":
        return array
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
        dtype = array.dtype
    array = np.ascontiguousarray(array).reshape(array.shape)
    if dtype == _BOOL or dtype in _DLPACK:
        if not array.flags.writeable:
            array = array.copy()  # numpy exports no read-only memory
        return owning_tensor(array)
    return _copied(array, ir.DataType.from_numpy(dtype))


def array_of(tensor: ir.TensorProtocol) -> Any:
    """A constant tensor as ONNX Runtime gives arrays: strings are objects; what is no text stays bytes."""
    if tensor.dtype != ir.DataType.STRING:
        return tensor.numpy()
    from ortopt.semantics import strings_of

    strings = strings_of(tensor)
    strings.reshape(-1)[:] = [_text(content) for content in strings.reshape(-1)]
    return strings


def _text(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def tensor_to_ort(tensor: ir.TensorProtocol) -> Any:
    """What a plan holds for a constant tensor."""
    if tensor.dtype == ir.DataType.STRING:
        return array_of(tensor)
    if tensor.dtype.bitwidth < 8:
        packed = np.frombuffer(tensor.tobytes(), np.uint8)
        return _copied(packed, tensor.dtype, tuple(tensor.shape.numpy()))
    return to_ort(np.array(tensor.numpy()))


def _copied(array: Array, dtype: ir.DataType, shape: tuple[int, ...] | None = None) -> NativeValue:
    """An OrtValue with its own memory, of a dtype that DLPack does not carry."""
    dims = array.shape if shape is None else shape
    value = empty_tensor(dims, dtype.value, native_device("cpu"))
    if shape is None and dtype.bitwidth < 8:
        array = np.frombuffer(ir.Tensor(array, dtype).tobytes(), np.uint8)
    if array.nbytes:
        ctypes.memmove(value.data_ptr(), array.ctypes.data, array.nbytes)
    return value


def to_array(value: NativeValue, dtype: ir.DataType) -> Array:
    """An array that shares the memory of a tensor of numbers and keeps it alive; of types that numpy lacks a copy.

    Args:
        value: The tensor.
        dtype: Its element type.

    Raises:
        NotImplementedError: It is on a device, and numpy lacks its type.
    """
    if is_native(dtype):
        array: Array = value.numpy()
        return array
    if value.device_name().lower() != "cpu":
        raise NotImplementedError(f"a value of type {value.data_type()} cannot be copied from {value.device_name()}")
    size = size_in_bytes(value)
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    shape = tuple(value.shape())
    if dtype.bitwidth < 8:
        return np.array(ir.PackedTensor(np.frombuffer(raw, np.uint8), dtype, shape=ir.Shape(shape)).numpy())
    return np.frombuffer(raw, dtype.numpy()).reshape(shape)


def holds_numbers(value: Any) -> TypeGuard[NativeValue]:
    """Whether a value is an OrtValue of a tensor of numbers."""
    return isinstance(value, value_class()) and value.has_value() and is_plain(value.data_type())


def elements(vector: Sequence[Any]) -> list[Any]:
    """The values of ONNX Runtime's vector. The end of its iterator is a C++ exception, which takes 100 microseconds."""
    return [vector[i] for i in range(len(vector))]


def nbytes_of(value: Any) -> int:
    """Bytes of a tensor of numbers; 0 for anything else."""
    return size_in_bytes(value) if holds_numbers(value) else 0


def own(value: Any) -> Any:
    """An array, or a list of them, that shares memory with nothing."""
    if isinstance(value, np.ndarray):
        return np.array(value)
    if isinstance(value, list):
        return [own(element) for element in value]
    return dict(value) if isinstance(value, dict) else value

"""Tensors between numpy, onnx-ir and ONNX Runtime, without copies where there is a way."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeGuard

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.errors import UsageError
from ortopt.runtime.onnxruntime_internals import (
    DLPACK_BOOL,
    NativeValue,
    empty_tensor,
    native_device,
    owning_tensor,
    reads_dlpack_bools,
    size_in_bytes,
    tensor_of_capsule,
    tensor_over,
    value_class,
)

_DEVICES: Final = {"cpu": 1, "cuda": 2}
_CODES: Final = {
    **{ir.DataType[f"INT{bits}"]: 0 for bits in (8, 16, 32, 64)},
    **{ir.DataType[f"UINT{bits}"]: 1 for bits in (8, 16, 32, 64)},
    **dict.fromkeys((ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE), 2),
    ir.DataType.BFLOAT16: 4,
    ir.DataType.BOOL: 1,  # eight bits, where ONNX Runtime does not know DLPack's own code
}


class _Device(ctypes.Structure):
    _fields_: ClassVar = [("kind", ctypes.c_int), ("index", ctypes.c_int)]


class _Type(ctypes.Structure):
    _fields_: ClassVar = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_: ClassVar = [("tensor", _Tensor), ("owner", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_kept: dict[int, tuple[Any, ...]] = {}


def _delete(managed: Any) -> None:
    _kept.pop(ctypes.addressof(managed.contents), None)


_deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))(_delete)


def at_address(kind: str, index: int, dtype: ir.DataType, shape: Sequence[int], address: int) -> NativeValue:
    """ONNX Runtime's C++ OrtValue on memory that must outlive it.

    Args:
        kind: ``cpu`` or ``cuda``.
        index: The number of the device.
        dtype: The element type.
        shape: The sizes; elements lie one after the other.
        address: Where the first one is.

    Raises:
        NotImplementedError: DLPack, or ONNX Runtime's reading of it, has no such device or type; or it has no DLPack.
    """
    if kind not in _DEVICES:
        raise NotImplementedError(f"memory at an address on {kind}: wrap it into an OrtValue and bind that")
    if dtype not in _CODES:
        raise NotImplementedError(f"memory at an address that holds {dtype.name.lower()}: wrap it into an OrtValue")
    is_bool = dtype == ir.DataType.BOOL
    code = DLPACK_BOOL if is_bool and reads_dlpack_bools() else _CODES[dtype]
    dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    managed = _Managed()
    managed.tensor.data = address
    managed.tensor.device = _Device(_DEVICES[kind], index)
    managed.tensor.rank = len(shape)
    managed.tensor.type = _Type(code, dtype.bitwidth, 1)
    managed.tensor.shape = ctypes.cast(dims, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p).value
    _kept[ctypes.addressof(managed)] = (managed, dims)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    capsule = new(ctypes.addressof(managed), b"dltensor", None)
    return tensor_of_capsule(capsule, is_bool=is_bool)


def byte_view(value: NativeValue, index: int) -> NativeValue:
    """The memory of a tensor, which must outlive it, as one of bytes: ONNX Runtime makes arrays of these.

    Args:
        value: A tensor of numbers that has elements.
        index: The number of its device.

    Raises:
        NotImplementedError: This ONNX Runtime has no DLPack, or DLPack no such device.
    """
    kind = value.device_name().lower()
    return at_address(kind, index, ir.DataType.UINT8, [size_in_bytes(value)], value.data_ptr())


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

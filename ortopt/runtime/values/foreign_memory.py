"""OrtValues on memory that is not ONNX Runtime's, by its address: what ONNX Runtime's ``bind_input`` takes.

ONNX Runtime's Python API makes them from DLPack's capsules, so one is made here: https://dmlc.github.io/dlpack.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import onnx_ir as ir

from ortopt.runtime.onnxruntime_internals import (
    DLPACK_BOOL,
    NativeValue,
    reads_dlpack_bools,
    size_in_bytes,
    tensor_of_capsule,
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

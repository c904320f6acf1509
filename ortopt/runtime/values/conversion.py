"""Values between numpy, Python and ONNX Runtime, without copies where there is a way.

In a plan a value is ONNX Runtime's own ``OrtValue`` (the C++ one) if it is a tensor of numbers. If it is anything else,
it is an OrtValue where a session made it, and a Python object (an array of strings, a list, a dict) where the caller or
the host did: ONNX Runtime's Python API makes no OrtValue of those. An optional that holds nothing is None.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]

_DLPACK: Final = frozenset(
    np.dtype(code) for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)
_BOOL: Final = np.dtype(bool)

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
    return dtype in PLAIN and not _is_native(dtype)


def _is_native(dtype: ir.DataType) -> bool:
    return dtype.bitwidth >= 8 and dtype.numpy().isbuiltin == 1


@functools.cache
def binding() -> Any:
    """ONNX Runtime's C++ module, imported when it is first needed."""
    from ortopt.analysis.providers import check_distributions

    check_distributions()
    from onnxruntime.capi import onnxruntime_pybind11_state

    return onnxruntime_pybind11_state


@functools.cache
def device(name: str, index: int = 0) -> Any:
    """ONNX Runtime's C++ object for a device: ``cpu``, ``cuda``."""
    import onnxruntime

    return onnxruntime.OrtDevice.make(name, index)._get_c_device()


def borrow(array: Array) -> Any:
    """An OrtValue on a contiguous array of native numbers, which must outlive it."""
    return binding().OrtValue.ortvalue_from_numpy(array, device("cpu"))


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
        if dtype == _BOOL:
            return binding().OrtValue.from_dlpack(array.view(np.uint8).__dlpack__(), True)
        return binding().OrtValue.from_dlpack(array.__dlpack__(), False)
    return _copied(array, ir.DataType.from_numpy(dtype))


def taken(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a caller gave, with tensors of other libraries (those that speak DLPack) as ``onnxruntime.OrtValue``.

    They share the memory, and each keeps it alive.
    """
    foreign = [
        name
        for name, value in feeds.items()
        if type(value) is not np.ndarray and hasattr(type(value), "__dlpack__") and not isinstance(value, _own_kinds())
    ]
    if not foreign:
        return feeds
    import onnxruntime

    return {**feeds, **{name: onnxruntime.OrtValue.from_dlpack(feeds[name]) for name in foreign}}


@functools.cache
def _own_kinds() -> tuple[type, ...]:
    import onnxruntime

    return (np.ndarray, np.generic, onnxruntime.OrtValue)


def array_of(tensor: ir.TensorProtocol) -> Any:
    """A constant tensor as ONNX Runtime gives arrays: strings are objects; what is no text stays bytes."""
    if tensor.dtype != ir.DataType.STRING:
        return tensor.numpy()
    from ortopt.semantics import strings_of

    strings = strings_of(tensor)
    strings.reshape(-1)[:] = [_text(one) for one in strings.reshape(-1)]
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


def _copied(array: Array, dtype: ir.DataType, shape: tuple[int, ...] | None = None) -> Any:
    """An OrtValue with its own memory, of a dtype that DLPack does not carry."""
    dims = list(array.shape if shape is None else shape)
    value = binding().OrtValue.ortvalue_from_shape_and_onnx_type(dims, dtype.value, device("cpu"))
    if shape is None and dtype.bitwidth < 8:
        array = np.frombuffer(ir.Tensor(array, dtype).tobytes(), np.uint8)
    if array.nbytes:
        ctypes.memmove(value.data_ptr(), array.ctypes.data, array.nbytes)
    return value


def to_numpy(value: Any) -> Any:
    """An array that shares an OrtValue's memory and keeps it alive; what is no OrtValue as it is.

    Types that numpy lacks come as ml_dtypes' (a copy). A value on another device is copied to the CPU. Of sequences and
    maps Python's objects are made, which share nothing.
    """
    if not isinstance(value, binding().OrtValue):
        return value
    dtype = NAMES.get(value.data_type())
    if dtype not in PLAIN:
        from ortopt.runtime.values.containers import contents

        return contents(value)
    assert dtype is not None
    if _is_native(dtype):
        return value.numpy()
    if value.device_name().lower() != "cpu":
        raise NotImplementedError(f"a value of type {value.data_type()} cannot be copied from {value.device_name()}")
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()) if value.tensor_size_in_bytes() else b""
    shape = tuple(value.shape())
    if dtype.bitwidth < 8:
        return np.array(ir.PackedTensor(np.frombuffer(raw, np.uint8), dtype, shape=ir.Shape(shape)).numpy())
    return np.frombuffer(raw, dtype.numpy()).reshape(shape)


def holds_numbers(value: Any) -> bool:
    """Whether a value is an OrtValue of a tensor of numbers."""
    return isinstance(value, binding().OrtValue) and value.has_value() and is_plain(value.data_type())


def type_of(value: Any) -> str:
    """The type of a plan's value in ONNX's spelling; ``?`` for what cannot be told."""
    if isinstance(value, binding().OrtValue):
        return str(value.data_type())
    if isinstance(value, np.ndarray):
        return "tensor(string)" if value.dtype.kind in "OSUT" else type_of(to_ort(value))
    if isinstance(value, list):
        return f"seq({type_of(to_ort(value[0]))})" if value else "seq(?)"
    return "?"


def elements(vector: Sequence[Any]) -> list[Any]:
    """The values of ONNX Runtime's vector. The end of its iterator is a C++ exception, which takes 100 microseconds."""
    return [vector[i] for i in range(len(vector))]


def nbytes_of(value: Any) -> int:
    """Bytes of a tensor of numbers; 0 for anything else."""
    return int(value.tensor_size_in_bytes()) if holds_numbers(value) else 0


def own(value: Any) -> Any:
    """An array, or a list of them, that shares memory with nothing."""
    if isinstance(value, np.ndarray):
        return np.array(value)
    if isinstance(value, list):
        return [own(one) for one in value]
    return dict(value) if isinstance(value, dict) else value


def alone(value: Any) -> Any:
    """A plan's value that shares memory with nothing; what cannot be written to stays as it is."""
    if isinstance(value, binding().OrtValue) and not holds_numbers(value):
        return value
    return to_ort(own(to_numpy(value)))


def failure(message: str) -> Exception:
    """ONNX Runtime's error of something that goes wrong in a run."""
    error: Exception = binding().Fail(f"[ONNXRuntimeError] : 1 : FAIL : {message}")
    return error


def scalar(value: Any, what: str) -> Any:
    """The only element of a tensor.

    Raises:
        onnxruntime.capi.onnxruntime_pybind11_state.Fail: It has none, or several.
    """
    array = np.asarray(to_numpy(value))
    if array.size != 1:
        raise failure(f"{what} must be a single element, not a tensor of shape {list(array.shape)}")
    return array.reshape(-1)[0]


__all__ = [
    "NAMES",
    "PLAIN",
    "Array",
    "alone",
    "array_of",
    "binding",
    "borrow",
    "device",
    "elements",
    "failure",
    "has_no_array",
    "holds_numbers",
    "is_plain",
    "nbytes_of",
    "own",
    "scalar",
    "taken",
    "tensor_to_ort",
    "to_numpy",
    "to_ort",
    "type_of",
]

"""Values of a plan, of every kind, from and to what callers and the host have.

In a plan a value is ONNX Runtime's own ``OrtValue`` (the C++ one) if it is a tensor of numbers. If it is anything else,
it is an OrtValue where a session made it, and a Python object (an array of strings, a list, a dict) where the caller or
the host did: ONNX Runtime's Python API makes no OrtValue of those. An optional that holds nothing is None.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortopt.runtime.onnxruntime_internals import adopted, failure, value_class
from ortopt.runtime.values.containers import as_python
from ortopt.runtime.values.tensors import NAMES, PLAIN, holds_numbers, own, to_array, to_ort


def adopt_dlpack_tensors(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
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
    return {**feeds, **{name: adopted(feeds[name]) for name in foreign}}


@functools.cache
def _own_kinds() -> tuple[type, ...]:
    import onnxruntime

    return (np.ndarray, np.generic, onnxruntime.OrtValue)


def to_numpy(value: Any) -> Any:
    """An array that shares an OrtValue's memory and keeps it alive; what is no OrtValue as it is.

    Types that numpy lacks come as ml_dtypes' (a copy). A value on another device is copied to the CPU. Of sequences and
    maps Python's objects are made, which share nothing.
    """
    if not isinstance(value, value_class()):
        return value
    dtype = NAMES.get(value.data_type())
    return to_array(value, dtype) if dtype in PLAIN else as_python(value)


def type_of(value: Any) -> str:
    """The type of a plan's value in ONNX's spelling; ``?`` for what cannot be told."""
    if isinstance(value, value_class()):
        return str(value.data_type())
    if isinstance(value, np.ndarray):
        return "tensor(string)" if value.dtype.kind in "OSUT" else type_of(to_ort(value))
    if isinstance(value, list):
        return f"seq({type_of(to_ort(value[0]))})" if value else "seq(?)"
    return "?"


def detached(value: Any) -> Any:
    """A plan's value that shares memory with nothing; what cannot be written to stays as it is."""
    if isinstance(value, value_class()) and not holds_numbers(value):
        return value
    return to_ort(own(to_numpy(value)))


def scalar(value: Any, what: str) -> Any:
    """The only element of a tensor.

    Raises:
        onnxruntime.capi.onnxruntime_pybind11_state.Fail: It has none, or several.
    """
    array = np.asarray(to_numpy(value))
    if array.size != 1:
        raise failure(f"{what} must be a single element, not a tensor of shape {list(array.shape)}")
    return array.reshape(-1)[0]

"""Strings, sequences, optionals and maps as OrtValues, and OrtValues as Python's objects.

ONNX Runtime's Python API makes OrtValues of arrays of numbers only. The others are made by sessions: of a Constant, of
SequenceConstruct, of Optional.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import onnx

from ortopt.errors import InvalidModelError
from ortopt.runtime.onnxruntime_internals import (
    NativeSession,
    NativeValue,
    adopted,
    auxiliary_session,
    failure,
    new_binding,
    value_class,
)
from ortopt.runtime.values.tensors import NAMES, PLAIN, Array, holds_numbers, own, to_array, to_ort, write_type


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


_IR: Final = 8
_OPSET: Final = 17
_MAX_AT_ONCE: Final = 64
"""How many elements of a sequence one session puts together."""


def as_python(value: NativeValue) -> Any:
    """An OrtValue of any type on the CPU as ONNX Runtime gives it to Python: an array, a list, a dict, None.

    Args:
        value: ONNX Runtime's C++ object.
    """
    if not value.has_value():
        return None
    if value.is_tensor():
        return value.numpy()
    # A binding tells Python of what is bound, whatever its type, and whether it ever ran or not.
    bound = new_binding(_session("none", ()))
    bound.bind_ortvalue_output("y", value)
    return bound.copy_outputs_to_cpu()[0]


def as_ort_value(value: Any, type_: str = "tensor(float)") -> NativeValue:
    """An OrtValue of a plan's value, of any kind: ONNX Runtime's C++ object.

    Args:
        value: A plan's value.
        type_: What its type would be where nothing of it tells: of nothing, and of an empty list; in ONNX's spelling.

    Raises:
        NotImplementedError: It is a map: ONNX Runtime's operators make sequences of maps only, and take them apart.
    """
    own = value_class()
    if isinstance(value, own):
        return value
    if value is None:
        return _run("nothing", (type_,), [])
    if isinstance(value, list):
        return _sequence([as_ort_value(element) for element in value], type_)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSUT":
        return _strings(value)
    converted = to_ort(value)
    if isinstance(converted, own):
        return converted
    raise NotImplementedError(f"no OrtValue is made of {type(value).__name__}: use run()")


def _sequence(elements: list[NativeValue], type_: str) -> NativeValue:
    if not elements:
        inner = type_.removeprefix("optional(").removeprefix("seq(").rstrip(")") + ")"
        return _run("empty", (inner if inner.startswith("tensor(") else "tensor(float)",), [])
    kinds = {element.data_type() for element in elements}
    if len(kinds) > 1:
        raise InvalidModelError(f"a sequence has elements of several types: {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    sequence: NativeValue | None = None
    for start in range(0, len(elements), _MAX_AT_ONCE):
        part = elements[start : start + _MAX_AT_ONCE]
        if sequence is None:
            sequence = _run("sequence", (kind, str(len(part))), part)
        else:
            sequence = _run("longer", (kind, str(len(part))), [sequence, *part])
    assert sequence is not None
    return sequence


def _strings(array: Array) -> NativeValue:
    """Of an array of strings: the constant of a model. What else it holds is a string as ONNX Runtime has it: str()."""
    strings = array.reshape(-1).tolist()
    texts = strings if array.dtype.kind == "S" else [str(text).encode() for text in strings]
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=array.shape, string_data=texts)
    constant = onnx.helper.make_node("Constant", [], ["y"], value=tensor)
    return _session_of([constant], [], _type(8)).run_with_ort_values({}, ["y"], None)[0]


def _run(what: str, details: tuple[str, ...], values: list[NativeValue]) -> NativeValue:
    feeds = {f"x{i}": value for i, value in enumerate(values)}
    return _session(what, details).run_with_ort_values(feeds, ["y"], None)[0]


@functools.lru_cache(maxsize=128)
def _session(what: str, details: tuple[str, ...]) -> NativeSession:
    """A session that makes one kind of value."""
    node = onnx.helper.make_node
    if what == "none":
        return _session_of([node("Identity", ["x"], ["y"])], [("x", _type(1))], _type(1))
    type_ = _read(details[0])
    if what == "nothing":
        inner = type_.optional_type.elem_type if type_.HasField("optional_type") else type_
        return _session_of([node("Optional", [], ["y"], type=inner)], [], _optional(inner))
    sequence = onnx.helper.make_sequence_type_proto(type_)
    if what == "empty":
        return _session_of([node("SequenceEmpty", [], ["y"], dtype=type_.tensor_type.elem_type)], [], sequence)
    count = int(details[1])
    if what == "sequence":
        names = [f"x{i}" for i in range(count)]
        return _session_of([node("SequenceConstruct", names, ["y"])], [(name, type_) for name in names], sequence)
    nodes = [
        node("SequenceInsert", [f"s{i}" if i else "x0", f"x{i + 1}"], [f"s{i + 1}" if i + 1 < count else "y"])
        for i in range(count)
    ]
    inputs = [("x0", sequence), *((f"x{i + 1}", type_) for i in range(count))]
    return _session_of(nodes, inputs, sequence)


def _session_of(
    nodes: list[onnx.NodeProto], inputs: list[tuple[str, onnx.TypeProto]], output: onnx.TypeProto
) -> NativeSession:
    """A session of nodes that make a value."""
    info = onnx.helper.make_value_info
    graph = onnx.helper.make_graph(nodes, "value", [info(name, type_) for name, type_ in inputs], [info("y", output)])
    opset = onnx.helper.make_opsetid("", _OPSET)
    return auxiliary_session(onnx.helper.make_model(graph, ir_version=_IR, opset_imports=[opset]))


def _type(element: int) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(element, None)


def _optional(inner: onnx.TypeProto) -> onnx.TypeProto:
    return onnx.helper.make_optional_type_proto(inner)


def _read(text: str) -> onnx.TypeProto:
    """A type from ONNX's spelling."""
    proto = onnx.TypeProto()
    write_type(proto, text)
    return proto

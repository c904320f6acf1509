"""Strings, sequences, optionals and maps as OrtValues, and OrtValues as Python's objects.

ONNX Runtime's Python API makes OrtValues of arrays of numbers only. The others are made by sessions: of a Constant, of
SequenceConstruct, of Optional.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from itertools import pairwise
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
    small_model,
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
    bound = new_binding(_session("y = Identity (x0)", "tensor(float)", ("tensor(float)",)))
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
        inner = type_[len("optional(") : -1] if type_.startswith("optional(") else type_
        return _made(f"y = Optional <type = {_spelled(inner)}> ()", f"optional({inner})", [])
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
        kind = inner if inner in NAMES else "tensor(float)"
        return _made(f"y = SequenceEmpty <dtype = {NAMES[kind].value}> ()", f"seq({kind})", [])
    kinds = {element.data_type() for element in elements}
    if len(kinds) > 1:
        raise InvalidModelError(f"a sequence has elements of several types: {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    sequence: NativeValue | None = None
    for start in range(0, len(elements), _MAX_AT_ONCE):
        part = elements[start : start + _MAX_AT_ONCE]
        if sequence is None:
            given = ", ".join(f"x{i}" for i in range(len(part)))
            sequence = _made(f"y = SequenceConstruct ({given})", f"seq({kind})", part)
        else:
            names = pairwise(["x0", *(f"s{i}" for i in range(1, len(part))), "y"])
            nodes = (f"{after} = SequenceInsert ({before}, x{i})" for i, (before, after) in enumerate(names, 1))
            sequence = _made(" ".join(nodes), f"seq({kind})", [sequence, *part])
    assert sequence is not None
    return sequence


def _strings(array: Array) -> NativeValue:
    """Of an array of strings: the constant of a model. What else it holds is a string as ONNX Runtime has it: str()."""
    strings = array.reshape(-1).tolist()
    texts = strings if array.dtype.kind == "S" else [str(text).encode() for text in strings]
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=array.shape, string_data=texts)
    model = small_model("strings")
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["y"], value=tensor))
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.STRING, None))
    return auxiliary_session(model).run_with_ort_values({}, ["y"], None)[0]


def _made(nodes: str, type_: str, values: list[NativeValue]) -> NativeValue:
    """What nodes make of values.

    Args:
        nodes: The nodes as text: of ``x0``, ``x1`` ... they make ``y``.
        type_: Its type in ONNX's spelling.
        values: The values.
    """
    session = _session(nodes, type_, tuple(value.data_type() for value in values))
    return session.run_with_ort_values({f"x{i}": value for i, value in enumerate(values)}, ["y"], None)[0]


@functools.lru_cache(maxsize=128)
def _session(nodes: str, output: str, inputs: tuple[str, ...]) -> NativeSession:
    """A session that makes one kind of value; see `_made`."""
    given = ", ".join(f"{_spelled(type_)} x{i}" for i, type_ in enumerate(inputs))
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    model = onnx.parser.parse_model(f"{header} value ({given}) => ({_spelled(output)} y) {{ {nodes} }}")
    return auxiliary_session(model)


def _spelled(type_: str) -> str:
    """A type as models in text have it.

    Raises:
        UsageError: It is a type that cannot pass between groups.
    """
    write_type(onnx.TypeProto(), type_)
    return re.sub(r"tensor\((\w+)\)", r"\1[]", type_)

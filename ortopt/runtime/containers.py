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
from ortopt.evaluation.sessions import use_one_thread
from ortopt.runtime.values import binding, to_ort

_IR: Final = 8
_OPSET: Final = 17
_MAX_AT_ONCE: Final = 64
"""How many elements of a sequence one session puts together."""


def contents(value: Any) -> Any:
    """An OrtValue of any type on the CPU as ONNX Runtime gives it to Python: an array, a list, a dict, None.

    Args:
        value: ONNX Runtime's C++ object.
    """
    if not value.has_value():
        return None
    if value.is_tensor():
        return value.numpy()
    # A binding tells Python of what is bound, whatever its type, and whether it ever ran or not.
    bound = binding().SessionIOBinding(_session("none", ()))
    bound.bind_ortvalue_output("y", value)
    return bound.copy_outputs_to_cpu()[0]


def wrapped(value: Any, type_: str = "tensor(float)") -> Any:
    """An OrtValue of a plan's value, of any kind: ONNX Runtime's C++ object.

    Args:
        value: A plan's value.
        type_: What its type would be where nothing of it tells: of nothing, and of an empty list; in ONNX's spelling.

    Raises:
        NotImplementedError: It is a map: ONNX Runtime's operators make sequences of maps only, and take them apart.
    """
    own = binding().OrtValue
    if isinstance(value, own):
        return value
    if value is None:
        return _run("nothing", (type_,), [])
    if isinstance(value, list):
        return _sequence([wrapped(one) for one in value], type_)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSUT":
        return _strings(value)
    made = to_ort(value)
    if isinstance(made, own):
        return made
    raise NotImplementedError(f"no OrtValue is made of {type(value).__name__}: use run()")


def _sequence(elements: list[Any], type_: str) -> Any:
    if not elements:
        inner = type_.removeprefix("optional(").removeprefix("seq(").rstrip(")") + ")"
        return _run("empty", (inner if inner.startswith("tensor(") else "tensor(float)",), [])
    kinds = {one.data_type() for one in elements}
    if len(kinds) > 1:
        raise InvalidModelError(f"a sequence has elements of several types: {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    made = None
    for start in range(0, len(elements), _MAX_AT_ONCE):
        part = elements[start : start + _MAX_AT_ONCE]
        if made is None:
            made = _run("sequence", (kind, str(len(part))), part)
        else:
            made = _run("longer", (kind, str(len(part))), [made, *part])
    return made


def _strings(array: Any) -> Any:
    """Of an array of strings: the constant of a model. What else it holds is a string as ONNX Runtime has it: str()."""
    found = array.reshape(-1).tolist()
    texts = found if array.dtype.kind == "S" else [str(one).encode() for one in found]
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=array.shape, string_data=texts)
    return opened(
        _model([onnx.helper.make_node("Constant", [], ["y"], value=tensor)], [], _type(8))
    ).run_with_ort_values({}, ["y"], None)[0]


def _run(what: str, details: tuple[str, ...], values: list[Any]) -> Any:
    feeds = {f"x{i}": value for i, value in enumerate(values)}
    return _session(what, details).run_with_ort_values(feeds, ["y"], None)[0]


@functools.lru_cache(maxsize=128)
def _session(what: str, details: tuple[str, ...]) -> Any:
    """A session that makes one kind of value."""
    node = onnx.helper.make_node
    if what == "none":
        return opened(_model([node("Identity", ["x"], ["y"])], [("x", _type(1))], _type(1)))
    type_ = _read(details[0])
    if what == "nothing":
        inner = type_.optional_type.elem_type if type_.HasField("optional_type") else type_
        return opened(_model([node("Optional", [], ["y"], type=inner)], [], _optional(inner)))
    sequence = onnx.helper.make_sequence_type_proto(type_)
    if what == "empty":
        return opened(_model([node("SequenceEmpty", [], ["y"], dtype=type_.tensor_type.elem_type)], [], sequence))
    count = int(details[1])
    if what == "sequence":
        names = [f"x{i}" for i in range(count)]
        return opened(_model([node("SequenceConstruct", names, ["y"])], [(name, type_) for name in names], sequence))
    nodes = [
        node("SequenceInsert", [f"s{i}" if i else "x0", f"x{i + 1}"], [f"s{i + 1}" if i + 1 < count else "y"])
        for i in range(count)
    ]
    inputs = [("x0", sequence), *((f"x{i + 1}", type_) for i in range(count))]
    return opened(_model(nodes, inputs, sequence))


def _model(
    nodes: list[onnx.NodeProto], inputs: list[tuple[str, onnx.TypeProto]], output: onnx.TypeProto
) -> onnx.ModelProto:
    info = onnx.helper.make_value_info
    graph = onnx.helper.make_graph(nodes, "value", [info(name, type_) for name, type_ in inputs], [info("y", output)])
    return onnx.helper.make_model(graph, ir_version=_IR, opset_imports=[onnx.helper.make_opsetid("", _OPSET)])


def opened(model: onnx.ModelProto, entries: Mapping[str, str] | None = None) -> Any:
    """A session of ONNX Runtime's own for a small model that computes nothing: on the CPU, quiet, without threads.

    Args:
        model: The model.
        entries: Configuration entries.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    use_one_thread(options)
    options.log_severity_level = 4
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    session = binding().InferenceSession(options, model.SerializeToString(), False, False)
    session.initialize_session(["CPUExecutionProvider"], [{}], set())
    return session


def _type(element: int) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(element, None)


def _optional(inner: onnx.TypeProto) -> onnx.TypeProto:
    return onnx.helper.make_optional_type_proto(inner)


def _read(text: str) -> onnx.TypeProto:
    """A type from ONNX's spelling."""
    from ortopt.runtime.recipes import write_type

    proto = onnx.TypeProto()
    write_type(proto, text)
    return proto


__all__ = ["contents", "opened", "wrapped"]

"""From protobuf to the IR: texts, and the types and shapes that a file states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortopt.errors import InvalidModelError
from ortopt.terminal_text import quoted

FOREIGN_TYPE_KEY: Final = "ortopt.type"
"""Where a value's serialized ``TypeProto`` is kept in ``value.meta`` if onnx-ir has no such type (maps, opaque)."""


def text(content: str) -> str:
    """The text itself; protobuf gives bytes where a file holds what is not UTF-8."""
    if type(content) is not str:
        raise InvalidModelError(f"a text in it is not UTF-8: {quoted(content)}")
    return content


def properties(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    """Metadata, or None where there is none."""
    return {text(entry.key): text(entry.value) for entry in entries} or None


def state_type(value: ir.Value, info: onnx.ValueInfoProto) -> ir.Value:
    """Give a value the type, shape, documentation and metadata that a file states of it."""
    proto = info.type
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        element = tensor.elem_type
        if element:
            value.type = ir.TensorType(_data_type(element, info.name), denotation=text(proto.denotation) or None)
        if tensor.HasField("shape"):
            value.shape = _shape(tensor.shape)
    elif kind is not None:
        value.type = _type(proto)
        if value.type is None:
            value.meta[FOREIGN_TYPE_KEY] = proto.SerializeToString(deterministic=True)
        else:
            value.shape = _shape_of_type(proto)
    if info.metadata_props:
        value.metadata_props.update(properties(info.metadata_props) or {})
    if info.doc_string:
        value.doc_string = text(info.doc_string)
    return value


def _data_type(number: int, name: str) -> ir.DataType:
    try:
        return ir.DataType(number)
    except ValueError:
        raise InvalidModelError(f"{quoted(name)} has the data type {number}, which does not exist") from None


def _type(proto: onnx.TypeProto) -> Any:
    """The type in the IR, or None where onnx-ir has none."""
    kind = proto.WhichOneof("value")
    denotation = text(proto.denotation) or None
    if kind == "tensor_type":
        return ir.TensorType(_data_type(proto.tensor_type.elem_type, "a type"), denotation=denotation)
    if kind == "sparse_tensor_type":
        return ir.SparseTensorType(_data_type(proto.sparse_tensor_type.elem_type, "a type"), denotation=denotation)
    if kind in {"sequence_type", "optional_type"}:
        element = _type(getattr(proto, kind).elem_type)
        make = ir.SequenceType if kind == "sequence_type" else ir.OptionalType
        return None if element is None else make(element, denotation=denotation)
    return None


def type_and_shape(proto: onnx.TypeProto, label: str) -> ir.TypeAndShape:
    """The type and the shape that an attribute holds; `label` names it in a refusal."""
    type_ = _type(proto)
    if type_ is None and proto.WhichOneof("value") is not None:
        raise InvalidModelError(f"{label} is a {proto.WhichOneof('value')}, which ortopt does not carry")
    return ir.TypeAndShape(type_, _shape_of_type(proto))


def _shape_of_type(proto: onnx.TypeProto) -> ir.Shape | None:
    kind = proto.WhichOneof("value")
    if kind in {"sequence_type", "optional_type"}:
        return _shape_of_type(getattr(proto, kind).elem_type)
    if kind not in {"tensor_type", "sparse_tensor_type"}:
        return None
    holder = getattr(proto, kind)
    return _shape(holder.shape) if holder.HasField("shape") else None


def _shape(proto: onnx.TensorShapeProto) -> ir.Shape:
    dims: list[int | ir.SymbolicDim] = []
    denotations: list[str | None] = []
    denoted = False
    for dim in proto.dim:
        kind = dim.WhichOneof("value")
        if kind == "dim_value" and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        elif kind == "dim_param" and dim.dim_param:
            dims.append(ir.SymbolicDim(text(dim.dim_param)))
        else:  # some exporters write -1 for what they do not know
            dims.append(ir.SymbolicDim(None))
        denotation = text(dim.denotation)
        denoted = denoted or bool(denotation)
        denotations.append(denotation or None)
    return ir.Shape(dims, denotations=denotations if denoted else None, frozen=True)


def apply_types_of_functions(model: ir.Model, infos: Iterable[onnx.ValueInfoProto]) -> None:
    """Before IR version 10, exporters wrote the types of functions' values as ``domain::name/value`` in the graph."""
    named: dict[str, dict[str, ir.Value]] = {}
    for function in model.functions.values():
        values = named[f"{function.domain}::{function.name}"] = {}
        values.update((value.name, value) for value in function.inputs if value.name)
        values.update((value.name, value) for node in function for value in node.outputs if value.name)
    for info in infos:
        owner, _, name = info.name.rpartition("/")
        value = named.get(owner, {}).get(name)
        if value is not None:
            state_type(value, info)


__all__ = ["FOREIGN_TYPE_KEY", "apply_types_of_functions", "properties", "state_type", "text", "type_and_shape"]

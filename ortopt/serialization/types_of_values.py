"""Types of values, in the wire format and in the IR."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortopt.errors import InvalidModelError, OutputError
from ortopt.graph.facts import declared_shape
from ortopt.graph.symbolic import INVENTED
from ortopt.onnx_ir_internals import meta_of, properties_of
from ortopt.semantics import QUANTIZATION_KEY
from ortopt.serialization.tensor_encoding import optional, properties
from ortopt.serialization.wire import field, integer
from ortopt.terminal_text import quoted


class ValueInfos:
    """What a file says about values apart from the nodes, each value once.

    Args:
        prefix: What stands before each name.
        names: The values whose types are written, with the prefix; None for all.

    Attributes:
        parts: Fields of a graph or a function.
    """

    __slots__ = ("_names", "_prefix", "_seen", "parts")

    def __init__(self, prefix: str = "", names: Collection[str] | None = None) -> None:
        self._prefix = prefix
        self._names = names
        self._seen: set[str] = set()
        self.parts: list[bytes] = []

    def type(self, value: ir.Value, number: int) -> None:
        """Add a value's type, if it has a name and there is something to say."""
        name = value.name
        if not name or (self._names is not None and self._prefix + name not in self._names):
            return
        if value.type is None and not value.doc_string and not properties_of(value):
            meta = meta_of(value)
            if not meta or FOREIGN_TYPE_KEY not in meta:
                return
        self.parts.append(field(number, value_info(value, self._prefix)))

    def annotation(self, value: ir.Value) -> None:
        """Add a value's quantization annotation, if it has one."""
        meta = meta_of(value)
        if not meta or QUANTIZATION_KEY not in meta or not value.name or value.name in self._seen:
            return
        self._seen.add(value.name)
        self.parts.append(field(14, field(1, value.name.encode()) + properties(2, meta[QUANTIZATION_KEY])))


def says_more_than_tensor(value: ir.Value) -> bool:
    """Whether an initializer's value knows what its tensor does not."""
    if value.is_graph_input() or value.is_graph_output():
        return False
    denoted = value.type is not None and bool(value.type.denotation)
    if not denoted and value.shape is not None:
        denoted = any(value.shape.get_denotation(axis) for axis in range(len(value.shape)))
    return denoted or bool(value.doc_string or properties_of(value))


def value_info(value: ir.Value, prefix: str = "") -> bytes:
    """A serialized ``ValueInfoProto``."""
    parts = [field(1, (prefix + (value.name or "")).encode())]
    shape = declared_shape(value)
    if value.type is not None or shape is not None:
        parts.append(field(2, type_proto(value.type, shape)))
    elif (meta := meta_of(value)) and FOREIGN_TYPE_KEY in meta:
        parts.append(field(2, meta[FOREIGN_TYPE_KEY]))
    parts.append(optional(3, value.doc_string))
    if metadata := properties_of(value):
        parts.append(properties(4, metadata))
    return b"".join(parts)


_WRAPPED: Final = ((ir.SequenceType, 4), (ir.OptionalType, 9))


def type_proto(kind: Any, shape: ir.Shape | None) -> bytes:
    """A serialized ``TypeProto``; the shape belongs to the innermost tensor."""
    denotation = optional(6, kind.denotation) if kind is not None else b""
    for wrapper, number in _WRAPPED:
        if isinstance(kind, wrapper):
            return _ordered(number, field(number, field(1, type_proto(kind.elem_type, shape))), denotation)
    number = 8 if isinstance(kind, ir.SparseTensorType) else 1
    element = b"" if kind is None else integer(1, kind.dtype.value)
    contents = element + (b"" if shape is None else field(2, _shape(shape)))
    return _ordered(number, field(number, contents), denotation)


def _ordered(number: int, contents: bytes, denotation: bytes) -> bytes:
    return contents + denotation if number < 6 else denotation + contents


def _shape(shape: ir.Shape) -> bytes:
    parts = []
    for axis, dim in enumerate(shape):
        if isinstance(dim, int):
            if dim < 0:
                raise OutputError(f"a shape has a negative dimension: {dim}")
            contents = integer(1, dim)
        elif dim.value is None or INVENTED in dim.value:
            contents = b""
        else:
            contents = field(2, dim.value.encode())
        parts.append(field(1, contents + optional(3, shape.get_denotation(axis))))
    return b"".join(parts)


FOREIGN_TYPE_KEY: Final = "ortopt.type"
"""Where a value's serialized ``TypeProto`` is kept in ``value.meta`` if onnx-ir has no such type (maps, opaque)."""


def text(content: str) -> str:
    """The text itself; protobuf gives bytes where a file holds what is not UTF-8."""
    if type(content) is not str:
        raise InvalidModelError(f"a text in it is not UTF-8: {quoted(content)}")
    return content


def metadata_of(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str] | None:
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
            value.shape = _decoded_shape(tensor.shape)
    elif kind is not None:
        value.type = _type(proto)
        if value.type is None:
            value.meta[FOREIGN_TYPE_KEY] = proto.SerializeToString(deterministic=True)
        else:
            value.shape = _shape_of_type(proto)
    if info.metadata_props:
        value.metadata_props.update(metadata_of(info.metadata_props) or {})
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
    return _decoded_shape(holder.shape) if holder.HasField("shape") else None


def _decoded_shape(proto: onnx.TensorShapeProto) -> ir.Shape:
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

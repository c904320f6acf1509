"""From the IR to protobuf's wire format, with every tensor's data left where they are until they are written.

The result is a list of parts: bytes, and tensors that stand for the bytes of their data. No message is built, no weight is
copied, and the model is not touched (onnx-ir's writer renames tensors, copies all data, writes metadata twice).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import onnx
import onnx_ir as ir

from ortopt.errors import OutputError
from ortopt.graph.decode import DEVICES_FROM_IR, FOREIGN_TYPE_KEY, FUNCTION_TYPES_FROM_IR, QUANTIZATION_KEY
from ortopt.graph.symbolic import INVENTED
from ortopt.graph.text import one_line, quoted
from ortopt.graph.wire import field, integer, tag, varint

PASS_KEY: Final = "ortopt.pass"
ORIGIN_KEY: Final = "ortopt.origin"
_MOST_ORIGINS: Final = 8
_PROVENANCE_FROM_IR: Final = 10
_ALL_INITIALIZERS_ARE_INPUTS_BEFORE_IR: Final = 4


class Place(NamedTuple):
    """Where a tensor's data lie, or will lie.

    Attributes:
        location: The file, relative to the model's folder.
        offset: Bytes before the data.
        length: Bytes of data.
    """

    location: str
    offset: int
    length: int


Part = bytes | ir.TensorProtocol
Placing = Callable[[ir.TensorProtocol, bool], Place | None]
"""Says where a tensor's data go outside of the model, or None for inside; the flag is true for an attribute's tensor."""


def encode(
    model: ir.Model, *, place: Placing | None = None, types: bool = True, provenance: bool = False
) -> list[Part]:
    """Serialize a model as ``onnx.ModelProto``.

    Args:
        model: The model; it is not changed.
        place: Which tensors' data go to other files; None keeps all inside.
        types: Whether types of intermediate values are written.
        provenance: Whether nodes tell which transformer made them, from what.

    Returns:
        Parts that together are the message; a tensor stands for its ``tobytes()``.

    Raises:
        OutputError: The model has something that ONNX cannot express.
    """
    if provenance and model.ir_version < _PROVENANCE_FROM_IR:
        raise OutputError(f"provenance needs IR version {_PROVENANCE_FROM_IR}; the model has {model.ir_version}")
    try:
        return _Encoder(model, place, types, provenance).model(model).parts
    except RecursionError:
        raise OutputError("the model's graphs are nested too deeply to be written") from None
    except UnicodeEncodeError:
        raise OutputError("a name in the model is not valid Unicode") from None
    except (TypeError, AttributeError, ValueError, RuntimeError, struct.error) as error:
        raise OutputError(f"the model cannot be expressed in ONNX: {one_line(error)}") from error


class _Message:
    """A message that may hold tensors: parts, and how many bytes they are together."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.size = 0

    def add(self, data: bytes) -> None:
        self.parts.append(data)
        self.size += len(data)

    def add_tensor_data(self, number: int, tensor: ir.TensorProtocol) -> None:
        self.add(tag(number) + varint(tensor.nbytes))
        self.parts.append(tensor)
        self.size += tensor.nbytes

    def add_message(self, number: int, message: _Message) -> None:
        self.add(tag(number) + varint(message.size))
        self.parts += message.parts
        self.size += message.size


_INPUT, _OUTPUT, _NAME, _OP_TYPE, _NODE_DOC, _DOMAIN = (tag(number) for number in (1, 2, 3, 4, 6, 7))
_EMPTY_INPUT: Final = _INPUT + b"\0"
_NODE: Final = tag(1)
_VALUE_INFO: Final = tag(13)
_FLOATS, _INTS, _STRINGS = tag(7, 5), tag(8, 0), tag(9)
_FLOAT: Final = struct.Struct("<f")

_Type = ir.AttributeType
_ATTRIBUTE_TYPES: Final = {kind: integer(20, kind.value) for kind in ir.AttributeType}


def _text(prefix: bytes, text: str) -> bytes:
    data = text.encode()
    return prefix + varint(len(data)) + data


def _optional(number: int, text: str | None) -> bytes:
    return field(number, text.encode()) if text else b""


def _properties(number: int, entries: Mapping[str, str]) -> bytes:
    return b"".join(field(number, field(1, key.encode()) + field(2, entries[key].encode())) for key in sorted(entries))


def _opsets(number: int, imports: Mapping[str, int]) -> bytes:
    return b"".join(field(number, _optional(1, domain) + integer(2, version)) for domain, version in imports.items())


class _Encoder:
    def __init__(self, model: ir.Model, place: Placing | None, types: bool, provenance: bool) -> None:
        self._ir_version = model.ir_version
        self._place = place
        self._types = types
        self._provenance = provenance
        self._operators: dict[tuple[str, str, str], tuple[bytes, bytes]] = {}

    def model(self, model: ir.Model) -> _Message:
        if self._ir_version < DEVICES_FROM_IR and model.device_configurations:
            raise OutputError(f"IR version {self._ir_version} has no device configurations")
        out = _Message()
        out.add(integer(1, model.ir_version))
        out.add(_optional(2, model.producer_name) + _optional(3, model.producer_version) + _optional(4, model.domain))
        out.add(integer(5, model.model_version) if model.model_version else b"")
        out.add(_optional(6, model.doc_string))
        old_types = b""
        if self._types and self._ir_version < FUNCTION_TYPES_FROM_IR:
            old_types = b"".join(self._types_of_function(function) for function in model.functions.values())
        out.add_message(7, self._graph(model.graph, old_types, is_main=True))
        out.add(_opsets(8, model.opset_imports))
        out.add(_properties(14, model.metadata_props))
        for function in model.functions.values():
            out.add_message(25, self._function(function))
        for configuration in model.device_configurations:
            out.add(field(26, ir.serde.serialize_model_configuration(configuration).SerializeToString()))
        return out

    def _graph(self, graph: ir.Graph, more_types: bytes = b"", *, is_main: bool = False) -> _Message:
        out = _Message()
        self._nodes(graph, 1, out)
        out.add(_optional(2, graph.name))
        for name, value in graph.initializers.items():
            if value.const_value is None:
                raise OutputError(f"initializer {quoted(name)} has no data")
            out.add_message(5, self._tensor(value.const_value, name, in_attribute=False))
        out.add(_optional(10, graph.doc_string))
        inputs = list(graph.inputs)
        if is_main and self._ir_version < _ALL_INITIALIZERS_ARE_INPUTS_BEFORE_IR:
            inputs += [value for value in graph.initializers.values() if not value.is_graph_input()]
        out.add(b"".join(field(11, _value(value)) for value in inputs))
        out.add(b"".join(field(12, _value(value)) for value in graph.outputs))
        out.add(b"".join(field(13, _value(value)) for value in graph.initializers.values() if _tells_more(value)))
        if self._types:
            out.add(b"".join(_types_of(value for node in graph for value in node.outputs)))
            out.add(more_types)
        out.add(self._annotations(graph))
        out.add(_properties(16, graph.metadata_props))
        return out

    def _annotations(self, graph: ir.Graph) -> bytes:
        values = itertools.chain(
            graph.inputs, graph.initializers.values(), (value for node in graph for value in node.outputs)
        )
        found = {
            value.name: value.meta[QUANTIZATION_KEY]
            for value in values
            if value.meta and QUANTIZATION_KEY in value.meta
        }
        return b"".join(
            field(14, field(1, (name or "").encode()) + _properties(2, names)) for name, names in found.items()
        )

    def _function(self, function: ir.Function) -> _Message:
        if function.graph.initializers:
            raise OutputError(
                f"function {quoted(function.name)} has initializers, which ONNX does not have in functions"
            )
        out = _Message()
        out.add(_optional(1, function.name))
        out.add(b"".join(field(4, (value.name or "").encode()) for value in function.inputs))
        out.add(b"".join(field(5, (value.name or "").encode()) for value in function.outputs))
        attributes = list(function.attributes.values())
        out.add(b"".join(field(6, entry.name.encode()) for entry in attributes if entry.value is None))
        self._nodes(function.graph, 7, out)
        out.add(_optional(8, function.doc_string) + _opsets(9, function.opset_imports) + _optional(10, function.domain))
        for entry in attributes:
            if entry.value is not None:
                out.add_message(11, self._attribute(entry))
        if self._types and self._ir_version >= FUNCTION_TYPES_FROM_IR:
            out.add(b"".join(field(12, _value(value)) for value in _values(function) if _is_typed(value)))
        out.add(_optional(13, function.overload) + _properties(14, function.metadata_props))
        return out

    def _types_of_function(self, function: ir.Function) -> bytes:
        prefix = f"{function.domain}::{function.name}/"
        return b"".join(
            field(13, _value(value, prefix)) for value in _values(function) if value.name and _is_typed(value)
        )

    def _nodes(self, nodes: Iterable[ir.Node], number: int, out: _Message) -> None:
        prefix = tag(number)
        small: list[bytes] = []
        for node in nodes:
            message = self._node(node)
            if isinstance(message, bytes):
                small.append(prefix + varint(len(message)) + message)
                continue
            out.add(b"".join(small))
            small.clear()
            out.add_message(number, message)
        out.add(b"".join(small))

    def _node(self, node: ir.Node) -> bytes | _Message:
        parts = [_EMPTY_INPUT if value is None else _text(_INPUT, value.name or "") for value in node.inputs]
        outputs = node.outputs
        count = len(outputs)
        while count and not outputs[count - 1].name:
            count -= 1
        parts += [_text(_OUTPUT, value.name or "") for value in outputs[:count]]
        if node.name:
            parts.append(_text(_NAME, node.name))
        operator = node.op_identifier()
        known = self._operators.get(operator)
        if known is None:
            domain, op_type, overload = operator
            known = _text(_OP_TYPE, op_type), _optional(7, domain) + _optional(8, overload)
            self._operators[operator] = known
        parts.append(known[0])
        message: _Message | None = None
        attributes = node.attributes.data
        if attributes:
            for attribute in attributes.values():
                written = self._attribute(attribute)
                if message is None and not any(not isinstance(part, bytes) for part in written.parts):
                    parts.append(tag(5) + varint(written.size))
                    parts += written.parts  # type: ignore[arg-type]
                    continue
                if message is None:
                    message = _Message()
                    message.add(b"".join(parts))
                    parts = []
                message.add_message(5, written)
        if node.doc_string:
            parts.append(_text(_NODE_DOC, node.doc_string))
        parts.append(known[1])
        properties: Mapping[str, str] = node.metadata_props
        if self._provenance:
            properties = {**properties, **_provenance(node)}
        if properties:
            parts.append(_properties(9, properties))
        if node.device_configurations:
            parts.append(self._devices(node))
        if message is None:
            return b"".join(parts)
        message.add(b"".join(parts))
        return message

    def _devices(self, node: ir.Node) -> bytes:
        if self._ir_version < DEVICES_FROM_IR:
            raise OutputError(f"IR version {self._ir_version} has no device configurations")
        return b"".join(
            field(10, ir.serde.serialize_node_device_configuration(entry).SerializeToString(deterministic=True))
            for entry in node.device_configurations
        )

    def _attribute(self, attribute: ir.Attr) -> _Message:
        kind = attribute.type
        value: Any = attribute.value
        out = _Message()
        out.add(field(1, attribute.name.encode()))
        if attribute.is_ref():
            pass
        elif kind == _Type.FLOAT:
            out.add(tag(2, 5) + _float(value))
        elif kind == _Type.INT:
            out.add(tag(3, 0) + _int(value))
        elif kind == _Type.STRING:
            out.add(field(4, value if isinstance(value, bytes) else value.encode()))
        elif kind == _Type.TENSOR:
            out.add_message(5, self._tensor(value, value.name, in_attribute=True))
        elif kind == _Type.GRAPH:
            out.add_message(6, self._graph(value))
        elif kind == _Type.FLOATS:
            out.add(b"".join([_FLOATS + _float(item) for item in value]))
        elif kind == _Type.INTS:
            out.add(b"".join([_INTS + _int(item) for item in value]))
        elif kind == _Type.STRINGS:
            out.add(b"".join([_text(_STRINGS, item) for item in value]))
        elif kind == _Type.TENSORS:
            for tensor in value:
                out.add_message(10, self._tensor(tensor, tensor.name, in_attribute=True))
        elif kind == _Type.GRAPHS:
            for graph in value:
                out.add_message(11, self._graph(graph))
        elif kind == _Type.TYPE_PROTO:
            out.add(field(14, _type(value.type, value.shape)))
        elif kind == _Type.TYPE_PROTOS:
            out.add(b"".join(field(15, _type(item.type, item.shape)) for item in value))
        else:
            raise OutputError(f"attribute {quoted(attribute.name)} is of a type that cannot be written: {kind.name}")
        out.add(_optional(13, attribute.doc_string) + _ATTRIBUTE_TYPES[kind])
        if attribute.is_ref():
            out.add(field(21, (attribute.ref_attr_name or "").encode()))
        return out

    def _tensor(self, tensor: ir.TensorProtocol, name: str | None, *, in_attribute: bool) -> _Message:
        out = _Message()
        if isinstance(tensor, ir.serde.TensorProtoTensor):
            proto = onnx.TensorProto()
            proto.CopyFrom(tensor.raw)
            del proto.metadata_props[:]
            proto.ClearField("name")
            out.add(proto.SerializeToString(deterministic=True) + _optional(8, name))
            out.add(_properties(16, tensor.metadata_props))
            return out
        out.add(b"".join(tag(1, 0) + _int(dim) for dim in tensor.shape.numpy()))
        out.add(integer(2, tensor.dtype.value))
        if tensor.dtype == ir.DataType.STRING:
            out.add(b"".join(field(6, _bytes(item)) for item in _strings(tensor)))
        out.add(_optional(8, name))
        place = None if self._place is None or tensor.dtype == ir.DataType.STRING else self._place(tensor, in_attribute)
        if place is None and tensor.dtype != ir.DataType.STRING:
            out.add_tensor_data(9, tensor)
        out.add(_optional(12, tensor.doc_string))
        if place is not None:
            for key, text in zip(Place._fields, place, strict=True):
                out.add(field(13, field(1, key.encode()) + field(2, str(text).encode())))
            out.add(integer(14, onnx.TensorProto.EXTERNAL))
        out.add(_properties(16, tensor.metadata_props))
        return out


def _strings(tensor: ir.TensorProtocol) -> Sequence[Any]:
    if isinstance(tensor, ir.StringTensor):
        return tensor.string_data()
    return list(tensor.numpy().reshape(-1))


def _bytes(item: Any) -> bytes:
    return item.encode() if isinstance(item, str) else bytes(item)


def _int(number: int) -> bytes:
    if not -(2**63) <= number < 2**63:
        raise OutputError(f"the integer {number} has more than 64 bits")
    return varint(int(number))


def _float(number: float) -> bytes:
    try:
        return _FLOAT.pack(number)
    except OverflowError:  # as protobuf does
        return _FLOAT.pack(float("inf") if number > 0 else float("-inf"))


def _values(function: ir.Function) -> Iterable[ir.Value]:
    return itertools.chain(function.inputs, (value for node in function for value in node.outputs))


def _types_of(values: Iterable[ir.Value]) -> Iterable[bytes]:
    for value in values:
        if value.name and not value.is_graph_output() and _is_typed(value):
            info = _value(value)
            yield _VALUE_INFO + varint(len(info)) + info


def _is_typed(value: ir.Value) -> bool:
    if value.type is not None or value.doc_string:
        return True
    return bool(value.metadata_props) or FOREIGN_TYPE_KEY in value.meta


def _tells_more(value: ir.Value) -> bool:
    """Whether an initializer's value knows what its tensor does not."""
    if value.is_graph_input() or value.is_graph_output():
        return False
    denoted = value.type is not None and value.type.denotation
    if not denoted and value.shape is not None:
        denoted = any(value.shape.get_denotation(axis) for axis in range(len(value.shape)))
    return bool(denoted or value.doc_string or value.metadata_props)


def _value(value: ir.Value, prefix: str = "") -> bytes:
    parts = [field(1, (prefix + (value.name or "")).encode())]
    if value.type is not None or value.shape is not None:
        parts.append(field(2, _type(value.type, value.shape)))
    elif FOREIGN_TYPE_KEY in value.meta:
        parts.append(field(2, value.meta[FOREIGN_TYPE_KEY]))
    parts.append(_optional(3, value.doc_string))
    if value.metadata_props:
        parts.append(_properties(4, value.metadata_props))
    return b"".join(parts)


_WRAPPED: Final = ((ir.SequenceType, 4), (ir.OptionalType, 9))


def _type(kind: Any, shape: ir.Shape | None) -> bytes:
    """A serialized ``TypeProto``; the shape belongs to the innermost tensor."""
    denotation = _optional(6, kind.denotation) if kind is not None else b""
    for wrapper, number in _WRAPPED:
        if isinstance(kind, wrapper):
            return _ordered(number, field(number, field(1, _type(kind.elem_type, shape))), denotation)
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
        parts.append(field(1, contents + _optional(3, shape.get_denotation(axis))))
    return b"".join(parts)


def _provenance(node: ir.Node) -> dict[str, str]:
    author = node.meta.get(PASS_KEY)
    if author is None:
        return {}
    names = node.meta.get(ORIGIN_KEY, ())
    told = ", ".join(names[:_MOST_ORIGINS])
    if len(names) > _MOST_ORIGINS:
        told += f", … ({len(names)} in all)"
    return {PASS_KEY: str(author), ORIGIN_KEY: told}

"""From the IR to protobuf's wire format, with every tensor's data left where they are until they are written.

The result is a list of parts: bytes, and tensors that stand for the bytes of their data. No message is built, no weight
is copied, and the model is not touched (onnx-ir's writer renames tensors, copies all data, writes metadata twice).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import onnx
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import OutputError
from ortopt.graph.facts import declared_shape
from ortopt.graph.provenance import MAX_ORIGINS, ORIGIN_KEY, PASS_KEY
from ortopt.graph.symbolic import INVENTED
from ortopt.graph.text import one_line, quoted
from ortopt.onnx_ir_internals import (
    attributes_of,
    get_meta,
    initializers_of,
    meta_of,
    properties_of,
)
from ortopt.semantics import GROUP_DOMAIN, QUANTIZATION_KEY
from ortopt.serialization.ir_versions import (
    CONSTANT_INITIALIZERS_FROM_IR,
    DEVICES_FROM_IR,
    FUNCTION_TYPES_FROM_IR,
    METADATA_FROM_IR,
)
from ortopt.serialization.sparse import SPARSE_KEY, SparseTensor
from ortopt.serialization.type_decoding import FOREIGN_TYPE_KEY
from ortopt.serialization.wire import field, integer, tag, varint


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
"""Says where a tensor's data go outside of the model, None for inside; the flag is true for an attribute's tensor."""


def encode(
    model: ir.Model,
    *,
    place: Placing | None = None,
    types: bool = True,
    provenance: bool = False,
    token: CancellationToken = NEVER,
) -> list[Part]:
    """Serialize a model as ``onnx.ModelProto``.

    Args:
        model: The model; it is not changed.
        place: Which tensors' data go to other files; None keeps all inside.
        types: Whether types of intermediate values are written.
        provenance: Whether nodes tell which transformer made them, from what.
        token: Cancellation token.

    Returns:
        Parts that together are the message; a tensor stands for its ``tobytes()``.

    Raises:
        OutputError: The model has something that ONNX cannot express.
    """
    if provenance and model.ir_version < METADATA_FROM_IR:
        raise OutputError(f"provenance needs IR version {METADATA_FROM_IR}; the model has {model.ir_version}")
    try:
        return _Encoder(model, place, types, provenance, token).model(model).parts
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

    def add_any(self, number: int, message: bytes | _Message) -> None:
        if isinstance(message, bytes):
            self.add(field(number, message))
        else:
            self.add_message(number, message)

    def add_message(self, number: int, message: _Message) -> None:
        self.add(tag(number) + varint(message.size))
        self.parts += message.parts
        self.size += message.size


_INPUT, _OUTPUT, _NAME, _OP_TYPE, _NODE_DOC = (tag(number) for number in (1, 2, 3, 4, 6))
_ATTRIBUTE_NAME: Final = tag(1)
_ATTRIBUTE: Final = tag(5)
_EMPTY_INPUT: Final = _INPUT + b"\0"
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
    def __init__(
        self, model: ir.Model, place: Placing | None, types: bool, provenance: bool, token: CancellationToken
    ) -> None:
        self._watch = token.checked
        self._ir_version = model.ir_version
        self._place = place
        self._types = types
        self._provenance = provenance
        self._in_function = False
        self._operators: dict[tuple[str, str, str], tuple[bytes, bytes]] = {}
        self._names: dict[str, bytes] = {}

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
        self._in_function = True
        for function in model.functions.values():
            out.add_message(25, self._function(function))
        for configuration in model.device_configurations:
            out.add(field(26, ir.serde.serialize_model_configuration(configuration).SerializeToString()))
        return out

    def _graph(self, graph: ir.Graph, more_types: bytes = b"", *, is_main: bool = False) -> _Message:
        out = _Message()
        types, annotations = _Told(), _Told()
        for value in self._watch(itertools.chain(graph.inputs, initializers_of(graph).values())):
            annotations.annotation(value)
        self._nodes(graph, 1, out, types, annotations)
        out.add(_optional(2, graph.name))
        for name, value in self._watch(graph.initializers.items()):
            if value.const_value is None:
                raise OutputError(f"initializer {quoted(name)} has no data")
            out.add_message(5, self._tensor(value.const_value, name, in_attribute=False))
        out.add(_optional(10, graph.doc_string))
        inputs = list(graph.inputs)
        if is_main and self._ir_version < CONSTANT_INITIALIZERS_FROM_IR:
            inputs += [value for value in initializers_of(graph).values() if not value.is_graph_input()]
        out.add(b"".join(field(11, _value(value)) for value in inputs))
        out.add(b"".join(field(12, _value(value)) for value in graph.outputs))
        constants = self._watch(initializers_of(graph).values())
        out.add(b"".join(field(13, _value(value)) for value in constants if _tells_more(value)))
        out.add(b"".join(types.parts) + more_types)
        out.add(b"".join(annotations.parts))
        out.add(_properties(16, graph.metadata_props))
        return out

    def _function(self, function: ir.Function) -> _Message:
        if function.graph.initializers:
            raise OutputError(f"function {quoted(function.name)} has initializers, which functions in ONNX have not")
        out = _Message()
        out.add(_optional(1, function.name))
        out.add(b"".join(field(4, (value.name or "").encode()) for value in function.inputs))
        out.add(b"".join(field(5, (value.name or "").encode()) for value in function.outputs))
        attributes = list(function.attributes.values())
        out.add(b"".join(field(6, entry.name.encode()) for entry in attributes if entry.value is None))
        types = _Told()
        if self._ir_version >= FUNCTION_TYPES_FROM_IR:
            for value in function.inputs:
                types.type(value, 12)
        told, self._types = self._types, self._types or function.domain == GROUP_DOMAIN
        self._nodes(function.graph, 7, out, types, None)
        out.add(_optional(8, function.doc_string) + _opsets(9, function.opset_imports) + _optional(10, function.domain))
        for entry in attributes:
            if entry.value is not None:
                out.add_any(11, self._attribute(entry))
        if self._types and self._ir_version >= FUNCTION_TYPES_FROM_IR:
            out.add(b"".join(types.parts))
        self._types = told
        out.add(_optional(13, function.overload) + _properties(14, function.metadata_props))
        return out

    @staticmethod
    def _types_of_function(function: ir.Function) -> bytes:
        types = _Told(f"{function.domain}::{function.name}/")
        for value in itertools.chain(function.inputs, (value for node in function for value in node.outputs)):
            types.type(value, 13)
        return b"".join(types.parts)

    def _nodes(
        self, nodes: Iterable[ir.Node], number: int, out: _Message, types: _Told, annotations: _Told | None
    ) -> None:
        """Write nodes; and tell, in the same sweep, the types and annotations of their results."""
        prefix = tag(number)
        type_number = 13 if annotations is not None else 12
        small: list[bytes] = []
        for node in self._watch(nodes):
            if node.op_type == "Constant" and get_meta(node, SPARSE_KEY) and not self._in_function:
                value = node.outputs[0]
                out.add_message(15, self._sparse_tensor(node.attributes["sparse_value"].value, value.name))
                if annotations is not None:
                    annotations.annotation(value)
                continue
            message = self._node(node)
            if isinstance(message, bytes):
                small.append(prefix + varint(len(message)) + message)
            else:
                out.add(b"".join(small))
                small.clear()
                out.add_message(number, message)
            for value in node.outputs:
                if annotations is not None and meta_of(value):
                    annotations.annotation(value)
                if self._types and not (annotations is not None and value.is_graph_output()):
                    types.type(value, type_number)
        out.add(b"".join(small))

    def _node(self, node: ir.Node) -> bytes | _Message:
        names = self._names
        parts: list[bytes] = []
        for value in node.inputs:
            if value is None:
                parts.append(_EMPTY_INPUT)
                continue
            name = value.name or ""
            parts.append(_INPUT)
            parts.append(names.get(name) or self._sized(name))
        outputs = node.outputs
        count = len(outputs)
        while count and not outputs[count - 1].name:
            count -= 1
        for value in outputs[:count]:
            name = value.name or ""
            parts.append(_OUTPUT)
            parts.append(names.get(name) or self._sized(name))
        if node.name:
            parts.append(_text(_NAME, node.name))
        operator, rest = self._operator(node)
        parts.append(operator)
        message = self._attributes(node, parts) if attributes_of(node) else None
        if node.doc_string:
            parts.append(_text(_NODE_DOC, node.doc_string))
        parts.append(rest)
        properties = properties_of(node)
        if self._provenance:
            properties = {**(properties or {}), **_provenance(node)}
        if properties:
            parts.append(_properties(9, properties))
        if node.device_configurations:
            parts.append(self._devices(node))
        if message is None:
            return b"".join(parts)
        message.add(b"".join(parts))
        return message

    def _operator(self, node: ir.Node) -> tuple[bytes, bytes]:
        """A node's operator; and its domain and overload, which come later in the message."""
        identifier = node.op_identifier()
        known = self._operators.get(identifier)
        if known is None:
            domain, op_type, overload = identifier
            known = _text(_OP_TYPE, op_type), _optional(7, domain) + _optional(8, overload)
            self._operators[identifier] = known
        return known

    def _attributes(self, node: ir.Node, parts: list[bytes]) -> _Message | None:
        """Add attributes to the parts; or, from the first that holds a tensor on, make a message of all so far."""
        message: _Message | None = None
        for attribute in attributes_of(node).values():
            written = self._attribute(attribute)
            if isinstance(written, bytes):
                parts.append(_ATTRIBUTE + varint(len(written)) + written)
                continue
            if message is None:
                message = _Message()
            message.add(b"".join(parts))
            parts.clear()
            message.add_message(5, written)
        return message

    def _sized(self, name: str) -> bytes:
        """A name with its length before it, remembered: most names are written twice."""
        sized = self._names[name] = _text(b"", name)
        return sized

    def _devices(self, node: ir.Node) -> bytes:
        if self._ir_version < DEVICES_FROM_IR:
            raise OutputError(f"IR version {self._ir_version} has no device configurations")
        return b"".join(
            field(10, ir.serde.serialize_node_device_configuration(entry).SerializeToString(deterministic=True))
            for entry in node.device_configurations
        )

    def _attribute(self, attribute: ir.Attr) -> bytes | _Message:
        kind = attribute.type
        name = _text(_ATTRIBUTE_NAME, attribute.name)
        rest = (_optional(13, attribute.doc_string) if attribute.doc_string else b"") + _ATTRIBUTE_TYPES[kind]
        if attribute.is_ref():
            return name + rest + field(21, (attribute.ref_attr_name or "").encode())
        value: Any = attribute.value
        write = _PLAIN_ATTRIBUTES.get(kind)
        if write is not None:
            return name + write(value) + rest
        out = _Message()
        out.add(name)
        if kind == _Type.TENSOR:
            out.add_message(5, self._tensor(value, value.name, in_attribute=True))
        elif kind == _Type.GRAPH:
            out.add_message(6, self._graph(value))
        elif kind == _Type.TENSORS:
            for tensor in value:
                out.add_message(10, self._tensor(tensor, tensor.name, in_attribute=True))
        elif kind == _Type.GRAPHS:
            for graph in value:
                out.add_message(11, self._graph(graph))
        elif kind == _Type.SPARSE_TENSOR:
            out.add_message(22, self._sparse_tensor(value, value.values.name))
        elif kind == _Type.SPARSE_TENSORS:
            for sparse in value:
                out.add_message(23, self._sparse_tensor(sparse, sparse.values.name))
        else:
            raise OutputError(f"attribute {quoted(attribute.name)} is of a type that cannot be written: {kind.name}")
        out.add(rest)
        return out

    def _sparse_tensor(self, tensor: SparseTensor, name: str | None) -> _Message:
        out = _Message()
        out.add_message(1, self._tensor(tensor.values, name, in_attribute=True))
        out.add_message(2, self._tensor(tensor.indices, tensor.indices.name, in_attribute=True))
        out.add(b"".join(tag(3, 0) + _int(dim) for dim in tensor.dims))
        return out

    def _tensor(self, tensor: ir.TensorProtocol, name: str | None, *, in_attribute: bool) -> _Message:
        out = _Message()
        if isinstance(tensor, ir.serde.TensorProtoTensor) and not tensor.raw.HasField("raw_data"):
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


class _Told:
    """What a file tells about values apart from the nodes: each value once."""

    __slots__ = ("_prefix", "_seen", "parts")

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._seen: set[str] = set()
        self.parts: list[bytes] = []

    def type(self, value: ir.Value, number: int) -> None:
        """Tell a value's type, if it has a name and something to tell."""
        name = value.name
        if not name:
            return
        if value.type is None and not value.doc_string and not properties_of(value):
            meta = meta_of(value)
            if not meta or FOREIGN_TYPE_KEY not in meta:
                return
        self.parts.append(field(number, _value(value, self._prefix)))

    def annotation(self, value: ir.Value) -> None:
        """Tell a value's quantization annotation, if it has one."""
        meta = meta_of(value)
        if not meta or QUANTIZATION_KEY not in meta or not value.name or value.name in self._seen:
            return
        self._seen.add(value.name)
        self.parts.append(field(14, field(1, value.name.encode()) + _properties(2, meta[QUANTIZATION_KEY])))


def _tells_more(value: ir.Value) -> bool:
    """Whether an initializer's value knows what its tensor does not."""
    if value.is_graph_input() or value.is_graph_output():
        return False
    denoted = value.type is not None and bool(value.type.denotation)
    if not denoted and value.shape is not None:
        denoted = any(value.shape.get_denotation(axis) for axis in range(len(value.shape)))
    return denoted or bool(value.doc_string or properties_of(value))


def _value(value: ir.Value, prefix: str = "") -> bytes:
    parts = [field(1, (prefix + (value.name or "")).encode())]
    shape = declared_shape(value)
    if value.type is not None or shape is not None:
        parts.append(field(2, _type(value.type, shape)))
    elif (meta := meta_of(value)) and FOREIGN_TYPE_KEY in meta:
        parts.append(field(2, meta[FOREIGN_TYPE_KEY]))
    parts.append(_optional(3, value.doc_string))
    if properties := properties_of(value):
        parts.append(_properties(4, properties))
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
    meta = meta_of(node)
    if not meta or PASS_KEY not in meta:
        return {}
    author, names = meta[PASS_KEY], meta.get(ORIGIN_KEY, ())
    told = ", ".join(names[:MAX_ORIGINS])
    if len(names) > MAX_ORIGINS:
        told += f", … ({len(names)} in all)"
    return {PASS_KEY: str(author), ORIGIN_KEY: told}


_PLAIN_ATTRIBUTES: Final[dict[ir.AttributeType, Callable[[Any], bytes]]] = {
    _Type.FLOAT: lambda value: tag(2, 5) + _float(value),
    _Type.INT: lambda value: tag(3, 0) + _int(value),
    _Type.STRING: lambda value: field(4, _bytes(value)),
    _Type.FLOATS: lambda value: b"".join([_FLOATS + _float(item) for item in value]),
    _Type.INTS: lambda value: b"".join([_INTS + _int(item) for item in value]),
    _Type.STRINGS: lambda value: b"".join([_text(_STRINGS, item) for item in value]),
    _Type.TYPE_PROTO: lambda value: field(14, _type(value.type, value.shape)),
    _Type.TYPE_PROTOS: lambda value: b"".join(field(15, _type(item.type, item.shape)) for item in value),
}

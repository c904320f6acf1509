"""From the IR to protobuf's wire format, with every tensor's data left where they are until they are written.

The result is a list of parts: bytes, and tensors that stand for the bytes of their data. No message is built, no weight
is copied, and the model is not touched (onnx-ir's writer renames tensors, copies all data, writes metadata twice).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import OutputError
from ortopt.graph.provenance import MAX_ORIGINS, ORIGIN_KEY, PASS_KEY, VALUES_KEY, values_text
from ortopt.onnx_ir_internals import (
    attributes_of,
    get_meta,
    initializers_of,
    meta_of,
    properties_of,
)
from ortopt.semantics import GROUP_DOMAIN
from ortopt.serialization.opset_imports import (
    CONSTANT_INITIALIZERS_FROM_IR,
    DEVICES_FROM_IR,
    FUNCTION_TYPES_FROM_IR,
    METADATA_FROM_IR,
)
from ortopt.serialization.sparse_tensors import SPARSE_KEY
from ortopt.serialization.tensor_encoding import (
    Message,
    Part,
    Placing,
    TensorEncoder,
    as_bytes,
    integer_of,
    optional,
    properties,
    text,
)
from ortopt.serialization.types_of_values import ValueInfos, says_more_than_tensor, type_proto, value_info
from ortopt.serialization.wire import field, integer, tag, varint
from ortopt.terminal_text import one_line, quoted


def encode(
    model: ir.Model,
    *,
    place: Placing | None = None,
    types: bool | Collection[str] = True,
    provenance: bool = False,
    token: CancellationToken = NEVER,
) -> list[Part]:
    """Serialize a model as ``onnx.ModelProto``.

    Args:
        model: The model; it is not changed.
        place: Which tensors' data go to other files; None keeps all inside.
        types: Whether types of intermediate values are written; or of which.
        provenance: Whether nodes get metadata about which transformer made them, from what.
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


_INPUT, _OUTPUT, _NAME, _OP_TYPE, _NODE_DOC = (tag(number) for number in (1, 2, 3, 4, 6))
_ATTRIBUTE_NAME: Final = tag(1)
_ATTRIBUTE: Final = tag(5)
_EMPTY_INPUT: Final = _INPUT + b"\0"
_FLOATS, _INTS, _STRINGS = tag(7, 5), tag(8, 0), tag(9)
_FLOAT: Final = struct.Struct("<f")

_Type = ir.AttributeType
_ATTRIBUTE_TYPES: Final = {kind: integer(20, kind.value) for kind in ir.AttributeType}


def _opsets(number: int, imports: Mapping[str, int]) -> bytes:
    return b"".join(field(number, optional(1, domain) + integer(2, version)) for domain, version in imports.items())


class _Encoder:
    def __init__(
        self,
        model: ir.Model,
        place: Placing | None,
        types: bool | Collection[str],
        provenance: bool,
        token: CancellationToken,
    ) -> None:
        self._checked = token.checked
        self._ir_version = model.ir_version
        self._tensors = TensorEncoder(place)
        self._types = bool(types)
        self._typed = None if isinstance(types, bool) else types
        self._provenance = provenance
        self._in_function = False
        self._operators: dict[tuple[str, str, str], tuple[bytes, bytes]] = {}
        self._names: dict[str, bytes] = {}

    def model(self, model: ir.Model) -> Message:
        if self._ir_version < DEVICES_FROM_IR and model.device_configurations:
            raise OutputError(f"IR version {self._ir_version} has no device configurations")
        out = Message()
        out.add(integer(1, model.ir_version))
        out.add(optional(2, model.producer_name) + optional(3, model.producer_version) + optional(4, model.domain))
        out.add(integer(5, model.model_version) if model.model_version else b"")
        out.add(optional(6, model.doc_string))
        old_types = b""
        if self._types and self._ir_version < FUNCTION_TYPES_FROM_IR:
            old_types = b"".join(self._types_of_function(function) for function in model.functions.values())
        out.add_message(7, self._graph(model.graph, old_types, is_main=True))
        out.add(_opsets(8, model.opset_imports))
        out.add(properties(14, model.metadata_props))
        self._in_function = True
        for function in model.functions.values():
            out.add_message(25, self._function(function))
        for configuration in model.device_configurations:
            out.add(field(26, ir.serde.serialize_model_configuration(configuration).SerializeToString()))
        return out

    def _graph(self, graph: ir.Graph, more_types: bytes = b"", *, is_main: bool = False) -> Message:
        out = Message()
        types, annotations = ValueInfos(names=self._typed), ValueInfos()
        for value in self._checked(itertools.chain(graph.inputs, initializers_of(graph).values())):
            annotations.annotation(value)
        self._nodes(graph, 1, out, types, annotations)
        out.add(optional(2, graph.name))
        for name, value in self._checked(graph.initializers.items()):
            if value.const_value is None:
                raise OutputError(f"initializer {quoted(name)} has no data")
            out.add_message(5, self._tensors.dense(value.const_value, name, in_attribute=False))
        out.add(optional(10, graph.doc_string))
        inputs = list(graph.inputs)
        if is_main and self._ir_version < CONSTANT_INITIALIZERS_FROM_IR:
            inputs += [value for value in initializers_of(graph).values() if not value.is_graph_input()]
        out.add(b"".join(field(11, value_info(value)) for value in inputs))
        out.add(b"".join(field(12, value_info(value)) for value in graph.outputs))
        constants = self._checked(initializers_of(graph).values())
        out.add(b"".join(field(13, value_info(value)) for value in constants if says_more_than_tensor(value)))
        out.add(b"".join(types.parts) + more_types)
        out.add(b"".join(annotations.parts))
        out.add(properties(16, graph.metadata_props))
        return out

    def _function(self, function: ir.Function) -> Message:
        if function.graph.initializers:
            raise OutputError(f"function {quoted(function.name)} has initializers, which functions in ONNX have not")
        out = Message()
        out.add(optional(1, function.name))
        out.add(b"".join(field(4, (value.name or "").encode()) for value in function.inputs))
        out.add(b"".join(field(5, (value.name or "").encode()) for value in function.outputs))
        attributes = list(function.attributes.values())
        out.add(b"".join(field(6, entry.name.encode()) for entry in attributes if entry.value is None))
        is_group = function.domain == GROUP_DOMAIN
        types = ValueInfos(names=None if is_group else self._typed)
        if self._ir_version >= FUNCTION_TYPES_FROM_IR:
            for value in function.inputs:
                types.type(value, 12)
        had_types, self._types = self._types, self._types or is_group
        self._nodes(function.graph, 7, out, types, None)
        out.add(optional(8, function.doc_string) + _opsets(9, function.opset_imports) + optional(10, function.domain))
        for entry in attributes:
            if entry.value is not None:
                out.add_any(11, self._attribute(entry))
        if self._types and self._ir_version >= FUNCTION_TYPES_FROM_IR:
            out.add(b"".join(types.parts))
        self._types = had_types
        out.add(optional(13, function.overload) + properties(14, function.metadata_props))
        return out

    def _types_of_function(self, function: ir.Function) -> bytes:
        types = ValueInfos(f"{function.domain}::{function.name}/", self._typed)
        for value in itertools.chain(function.inputs, (value for node in function for value in node.outputs)):
            types.type(value, 13)
        return b"".join(types.parts)

    def _nodes(
        self, nodes: Iterable[ir.Node], number: int, out: Message, types: ValueInfos, annotations: ValueInfos | None
    ) -> None:
        """Write nodes and, in the same sweep, the types and annotations of their results."""
        prefix = tag(number)
        type_number = 13 if annotations is not None else 12
        small: list[bytes] = []
        for node in self._checked(nodes):
            if node.op_type == "Constant" and get_meta(node, SPARSE_KEY) and not self._in_function:
                value = node.outputs[0]
                out.add_message(15, self._tensors.sparse(node.attributes["sparse_value"].value, value.name))
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

    def _node(self, node: ir.Node) -> bytes | Message:
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
            parts.append(text(_NAME, node.name))
        operator, rest = self._operator(node)
        parts.append(operator)
        message = self._attributes(node, parts) if attributes_of(node) else None
        if node.doc_string:
            parts.append(text(_NODE_DOC, node.doc_string))
        parts.append(rest)
        metadata = properties_of(node)
        if self._provenance:
            metadata = {**(metadata or {}), **_provenance(node)}
        if metadata:
            parts.append(properties(9, metadata))
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
            known = text(_OP_TYPE, op_type), optional(7, domain) + optional(8, overload)
            self._operators[identifier] = known
        return known

    def _attributes(self, node: ir.Node, parts: list[bytes]) -> Message | None:
        """Add attributes to the parts; or, from the first that holds a tensor on, make a message of all so far."""
        message: Message | None = None
        for attribute in attributes_of(node).values():
            written = self._attribute(attribute)
            if isinstance(written, bytes):
                parts.append(_ATTRIBUTE + varint(len(written)) + written)
                continue
            if message is None:
                message = Message()
            message.add(b"".join(parts))
            parts.clear()
            message.add_message(5, written)
        return message

    def _sized(self, name: str) -> bytes:
        """A name with its length before it, remembered: most names are written twice."""
        sized = self._names[name] = text(b"", name)
        return sized

    def _devices(self, node: ir.Node) -> bytes:
        if self._ir_version < DEVICES_FROM_IR:
            raise OutputError(f"IR version {self._ir_version} has no device configurations")
        return b"".join(
            field(10, ir.serde.serialize_node_device_configuration(entry).SerializeToString(deterministic=True))
            for entry in node.device_configurations
        )

    def _attribute(self, attribute: ir.Attr) -> bytes | Message:
        kind = attribute.type
        name = text(_ATTRIBUTE_NAME, attribute.name)
        rest = (optional(13, attribute.doc_string) if attribute.doc_string else b"") + _ATTRIBUTE_TYPES[kind]
        if attribute.is_ref():
            return name + rest + field(21, (attribute.ref_attr_name or "").encode())
        value: Any = attribute.value
        write = _PLAIN_ATTRIBUTES.get(kind)
        if write is not None:
            return name + write(value) + rest
        out = Message()
        out.add(name)
        if kind == _Type.TENSOR:
            out.add_message(5, self._tensors.dense(value, value.name, in_attribute=True))
        elif kind == _Type.GRAPH:
            out.add_message(6, self._graph(value))
        elif kind == _Type.TENSORS:
            for tensor in value:
                out.add_message(10, self._tensors.dense(tensor, tensor.name, in_attribute=True))
        elif kind == _Type.GRAPHS:
            for graph in value:
                out.add_message(11, self._graph(graph))
        elif kind == _Type.SPARSE_TENSOR:
            out.add_message(22, self._tensors.sparse(value, value.values.name))
        elif kind == _Type.SPARSE_TENSORS:
            for sparse in value:
                out.add_message(23, self._tensors.sparse(sparse, sparse.values.name))
        else:
            raise OutputError(f"attribute {quoted(attribute.name)} is of a type that cannot be written: {kind.name}")
        out.add(rest)
        return out


def _float(number: float) -> bytes:
    try:
        return _FLOAT.pack(number)
    except OverflowError:  # as protobuf does
        return _FLOAT.pack(float("inf") if number > 0 else float("-inf"))


def _provenance(node: ir.Node) -> dict[str, str]:
    meta, values = meta_of(node), values_text(node)
    told = {VALUES_KEY: values} if values else {}
    if not meta or PASS_KEY not in meta:
        return told
    author, names = meta[PASS_KEY], meta.get(ORIGIN_KEY, ())
    origins = ", ".join(names[:MAX_ORIGINS])
    if len(names) > MAX_ORIGINS:
        origins += f", … ({len(names)} in all)"
    return {PASS_KEY: str(author), ORIGIN_KEY: origins, **told}


_PLAIN_ATTRIBUTES: Final[dict[ir.AttributeType, Callable[[Any], bytes]]] = {
    _Type.FLOAT: lambda value: tag(2, 5) + _float(value),
    _Type.INT: lambda value: tag(3, 0) + integer_of(value),
    _Type.STRING: lambda value: field(4, as_bytes(value)),
    _Type.FLOATS: lambda value: b"".join([_FLOATS + _float(item) for item in value]),
    _Type.INTS: lambda value: b"".join([_INTS + integer_of(item) for item in value]),
    _Type.STRINGS: lambda value: b"".join([text(_STRINGS, item) for item in value]),
    _Type.TYPE_PROTO: lambda value: field(14, type_proto(value.type, value.shape)),
    _Type.TYPE_PROTOS: lambda value: b"".join(field(15, type_proto(item.type, item.shape)) for item in value),
}

"""From protobuf messages to the IR, without losing anything on the way.

onnx-ir's own reader drops what it does not know (sparse initializers, training information, types of function inputs,
map and opaque types, the second of two initializers of one name), invents values for names that nothing defines, and
spells out whole messages in its errors. This reader carries these things, or refuses them in one line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import onnx
import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError
from ortopt.onnx_ir_internals import fill
from ortopt.semantics import GROUP_DOMAIN, QUANTIZATION_KEY
from ortopt.semantics.domains import MICROSOFT
from ortopt.serialization import opset_imports, sparse_tensors
from ortopt.serialization.mapped_tensors import MappedFile
from ortopt.serialization.opset_imports import DEVICES_FROM_IR, FUNCTION_TYPES_FROM_IR, canonical
from ortopt.serialization.tensor_decoding import ExternalFiles, TensorDecoder
from ortopt.serialization.types_of_values import apply_types_of_functions, metadata_of, state_type, text, type_and_shape
from ortopt.serialization.wire import Stripped
from ortopt.terminal_text import quoted


class DuplicateNameError(InvalidModelError):
    """Two values of one graph have the same name."""


class _Constant(Struct, frozen=True):
    """One of the constants of a name: its message, and what must be equal in all of them."""

    message: onnx.TensorProto | onnx.SparseTensorProto
    node: int | None

    @property
    def type(self) -> tuple[int, tuple[int, ...]]:
        message = self.message
        if isinstance(message, onnx.SparseTensorProto):
            return message.values.data_type, tuple(message.dims)
        return message.data_type, tuple(message.dims)


def without_duplicates(graph: onnx.GraphProto) -> onnx.GraphProto:
    """A copy of a main graph in which each name that only constants have is that of one of them.

    Args:
        graph: The main graph. What is repeated otherwise stays.

    Raises:
        InvalidModelError: Constants of one name differ in type or shape, which ONNX Runtime refuses.
    """
    by_name: dict[str, list[_Constant]] = {}
    for name, constant in _constants(graph):
        by_name.setdefault(name, []).append(constant)
    inputs = {info.name for info in graph.input}
    computed = {
        name for node in graph.node if not _is_constant(node) for name in node.output
    }  # a name that something else has too stays repeated
    result = onnx.GraphProto()
    result.CopyFrom(graph)
    gone: set[int] = set()
    lost: set[str] = set()
    for name, constants in by_name.items():
        if name in computed or (len(constants) == 1 and (constants[0].node is None or name not in inputs)):
            continue
        if len({constant.type for constant in constants}) > 1:
            raise InvalidModelError(f"two constants named {quoted(name)} differ in type or shape")
        lost.add(name)
        kept = constants[-1]
        as_node = kept.node is not None and name not in inputs
        gone.update(other.node for other in constants if other.node is not None and not (as_node and other is kept))
    for field in (result.initializer, result.sparse_initializer):
        remaining = [message for message in field if _name(message) not in lost]
        del field[:]
        field.extend(remaining)
    for name in lost:
        kept = by_name[name][-1]
        if kept.node is None or kept.node in gone:
            field = (
                result.sparse_initializer if isinstance(kept.message, onnx.SparseTensorProto) else result.initializer
            )
            field.append(kept.message)
    for position in sorted(gone, reverse=True):
        del result.node[position]
    return result


def _name(message: onnx.TensorProto | onnx.SparseTensorProto) -> str:
    return message.values.name if isinstance(message, onnx.SparseTensorProto) else message.name


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and not canonical(node.domain) and len(node.output) == 1


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, _Constant]]:
    """The constants with their names, each before those that are taken in its place."""
    for tensor in graph.initializer:
        yield tensor.name, _Constant(tensor, None)
    for position, node in enumerate(graph.node):
        if _is_constant(node) and (message := _content(node)) is not None:
            yield node.output[0], _Constant(message, position)
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, _Constant(sparse, None)


def _content(node: onnx.NodeProto) -> onnx.TensorProto | onnx.SparseTensorProto | None:
    """What a Constant node holds, as an initializer of its result's name."""
    if not node.attribute:
        return None
    attribute, name = node.attribute[0], node.output[0]
    if attribute.name == "sparse_value":
        sparse = onnx.SparseTensorProto()
        sparse.CopyFrom(attribute.sparse_tensor)
        sparse.values.name = name
        return sparse
    if attribute.name == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(attribute.t)
        tensor.name = name
        return tensor
    value = onnx.helper.get_attribute_value(attribute)
    kind = {"value_int": 7, "value_ints": 7, "value_float": 1, "value_floats": 1, "value_string": 8, "value_strings": 8}
    if attribute.name not in kind:
        return None
    dims = [len(value)] if attribute.name.endswith("s") else []
    return onnx.helper.make_tensor(name, kind[attribute.name], dims, value if dims else [value])


_Type = ir.AttributeType
_KINDS: Final = {kind.value: kind for kind in _Type}
_SIMPLE_ATTRIBUTES: Final[dict[ir.AttributeType, Callable[[onnx.AttributeProto], Any]]] = {
    _Type.FLOAT: lambda proto: proto.f,
    _Type.INT: lambda proto: proto.i,
    _Type.FLOATS: lambda proto: tuple(proto.floats),
    _Type.INTS: lambda proto: tuple(proto.ints),
    _Type.STRINGS: lambda proto: tuple(string.decode() for string in proto.strings),
}

_Scopes = tuple[dict[str, ir.Value], ...]


def decode(
    proto: onnx.ModelProto,
    stripped: Stripped,
    source: MappedFile | bytes,
    files: ExternalFiles,
    token: CancellationToken = NEVER,
) -> tuple[ir.Model, frozenset[str]]:
    """Build the IR of a model.

    Args:
        proto: What protobuf parsed from ``stripped.model``.
        stripped: The model without its large tensors.
        source: What the cuts point into.
        files: Opens files of external data.
        token: Cancellation token.

    Returns:
        The model, and the values whose types the file states, besides inputs and outputs; those in groups do not count,
        which always state theirs.

    Raises:
        InvalidModelError: The model is broken, or has something that the IR cannot carry.
    """
    decoder = _Decoder(proto, stripped, source, files, token)
    return decoder.model(proto), frozenset(decoder.typed)


class _Decoder:
    def __init__(
        self,
        proto: onnx.ModelProto,
        stripped: Stripped,
        source: MappedFile | bytes,
        files: ExternalFiles,
        token: CancellationToken,
    ) -> None:
        self._token = token
        self._tensors = TensorDecoder(stripped, source, files)
        self._ir_version = proto.ir_version
        self._configurations: dict[str, Any] = {}
        self._operators: set[tuple[str, str, str]] = set()
        self.typed: set[str] = set()

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        if not proto.HasField("graph"):
            raise InvalidModelError("it has no graph: not an ONNX model")
        if proto.training_info:
            raise InvalidModelError("it has training_info, which ortopt does not carry")
        if proto.configuration and proto.ir_version < DEVICES_FROM_IR:
            raise InvalidModelError(f"it has device configurations, which IR version {proto.ir_version} does not have")
        configurations = tuple(ir.serde.deserialize_model_configuration(entry) for entry in proto.configuration)
        for configuration in configurations:
            if not configuration.name:
                raise InvalidModelError("it has a device configuration without a name")
            for name in (configuration.name, *configuration.device_names):
                text(name)
        self._configurations = {configuration.name: configuration for configuration in configurations}
        try:
            graph = self._graph(proto.graph, ())
        except DuplicateNameError:
            graph = self._graph(without_duplicates(proto.graph), ())
        imports = graph.opset_imports
        imports.update(opset_imports.imported(_opsets(proto.opset_import)))
        opset_imports.complete(
            imports, (opset_imports.canonical(domain) for domain, _, _ in self._operators), proto.ir_version
        )
        functions = [self._function(function, imports) for function in proto.functions]
        if any(domain == MICROSOFT for domain, _, _ in self._operators):  # functions take it for granted too
            imports.setdefault(MICROSOFT, 1)
        model = ir.Model(
            graph,
            ir_version=proto.ir_version,
            producer_name=text(proto.producer_name) or None,
            producer_version=text(proto.producer_version) or None,
            domain=text(proto.domain) or None,
            model_version=proto.model_version or None,
            doc_string=text(proto.doc_string) or None,
            functions=functions,
            metadata_props=metadata_of(proto.metadata_props),
            device_configurations=configurations,
        )
        model.meta[sparse_tensors.SPARSE_KEY] = self._tensors.has_sparse
        if len(model.functions) != len(functions):
            raise InvalidModelError("two of its functions have the same domain, name and overload")
        if functions and proto.ir_version < FUNCTION_TYPES_FROM_IR:
            apply_types_of_functions(model, proto.graph.value_info)
        return model

    def _graph(self, proto: onnx.GraphProto, outer: _Scopes) -> ir.Graph:
        values: dict[str, ir.Value] = {}
        checked = self._token.checked
        inputs = [state_type(_declared(values, info.name, "graph input"), info) for info in proto.input]
        taken = {info.name for info in proto.input}
        infos = {info.name: info for info in checked(proto.value_info)}
        self.typed.update(infos)
        initializers = self._initializers(proto.initializer, values, infos, is_main=not outer)
        nodes = self._sparse_initializers(proto.sparse_initializer, values, initializers)
        _declare_outputs(checked(proto.node), values, infos)
        scopes = (*outer, values)
        nodes += [self._node(node, scopes) for node in checked(proto.node)]
        outputs = []
        for info in proto.output:
            if info.name not in values:
                raise InvalidModelError(f"no node produces the graph output {quoted(info.name)}")
            value = values[info.name]
            if value.const_value is not None and info.name not in taken:
                value.shape = None  # what an output's declaration leaves open stays open, whatever the tensor says
            if info.name not in taken:  # what is said of an input is what counts
                state_type(value, info)
            outputs.append(value)
        for annotation in proto.quantization_annotation:
            if annotation.tensor_name in values:
                meta = values[annotation.tensor_name].meta
                meta[QUANTIZATION_KEY] = metadata_of(annotation.quant_parameter_tensor_names) or {}
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=(),
            doc_string=text(proto.doc_string) or None,
            name=text(proto.name),
            metadata_props=metadata_of(proto.metadata_props),
        )
        fill(graph, initializers.values(), nodes, self._token)
        return graph

    def _initializers(
        self,
        protos: Iterable[onnx.TensorProto],
        values: dict[str, ir.Value],
        infos: Mapping[str, onnx.ValueInfoProto],
        *,
        is_main: bool,
    ) -> dict[str, ir.Value]:
        """The values of initializers, by name; those of graph inputs become their defaults."""
        initializers: dict[str, ir.Value] = {}
        for proto in self._token.checked(protos):
            name = proto.name
            if name in initializers:
                raise DuplicateNameError(f"two initializers are named {quoted(name)}")
            if not name and is_main:  # nothing can refer to it; ONNX Runtime leaves it out
                continue
            tensor = self._tensors.dense(proto, f"initializer {quoted(name)}")
            value = values.get(name)
            if value is None:
                value = _declared(values, name, "initializer")
                value.type = ir.TensorType(tensor.dtype)
                value.shape = tensor.shape  # type: ignore[assignment]
                if name in infos:
                    state_type(value, infos[name])
            value.const_value = tensor
            initializers[name] = value
        return initializers

    def _sparse_initializers(
        self,
        protos: Iterable[onnx.SparseTensorProto],
        values: dict[str, ir.Value],
        initializers: dict[str, ir.Value],
    ) -> list[ir.Node]:
        """Nodes for sparse initializers; those that are defaults of inputs become dense."""
        nodes = []
        for proto in protos:
            name = proto.values.name
            tensor = self._tensors.sparse(proto, f"sparse initializer {quoted(name)}")
            value = values.get(name)
            if value is not None and name not in initializers:
                value.const_value = tensor.dense(name)
                initializers[name] = value
                continue
            value = _declared(values, name, "sparse initializer")
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.dims, frozen=True)
            nodes.append(sparse_tensors.constant_node(tensor, value))
        return nodes

    def _function(self, proto: onnx.FunctionProto, imports: Mapping[str, int]) -> ir.Function:
        label = quoted(f"{proto.domain}.{proto.name}")
        values: dict[str, ir.Value] = {}
        checked = self._token.checked
        infos = {info.name: info for info in checked(proto.value_info)}
        if proto.domain != GROUP_DOMAIN:  # which are typed in any case
            self.typed.update(infos)
        inputs = [_declared(values, name, f"input of function {label}") for name in proto.input]
        for value in inputs:
            if value.name in infos:
                state_type(value, infos[value.name])
        _declare_outputs(checked(proto.node), values, infos)
        nodes = [self._node(node, (values,)) for node in checked(proto.node)]
        outputs = []
        for name in proto.output:
            if name not in values:
                raise InvalidModelError(f"no node produces {quoted(name)}, an output of function {label}")
            outputs.append(values[name])
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=(),
            doc_string=text(proto.doc_string) or None,
            opset_imports=opset_imports.imported_by_function(_opsets(proto.opset_import), imports),
            name=text(proto.name),
            metadata_props=metadata_of(proto.metadata_props),
        )
        fill(graph, (), nodes, self._token)
        attributes = [self._attribute(attribute, (), label) for attribute in proto.attribute_proto]
        attributes += [ir.Attr(text(name), ir.AttributeType.UNDEFINED, None) for name in proto.attribute]
        if len({attribute.name for attribute in attributes}) != len(attributes):
            raise InvalidModelError(f"two attributes of function {label} have the same name")
        return ir.Function(
            text(proto.domain), text(proto.name), text(proto.overload), graph=graph, attributes=attributes
        )

    def _node(self, proto: onnx.NodeProto, scopes: _Scopes) -> ir.Node:
        values = scopes[-1]
        inputs: list[ir.Value | None] = []
        for name in proto.input:
            value = values.get(name)
            inputs.append(value if value is not None else _from_outside(name, scopes, proto))
        attributes: Sequence[ir.Attr] = ()
        if proto.attribute:
            protos: Sequence[onnx.AttributeProto] = proto.attribute
            if len(protos) > 1 and proto.op_type == "Constant" and not opset_imports.canonical(proto.domain):
                protos = protos[:1]  # ONNX Runtime reads the first one
            attributes = [self._attribute(attribute, scopes, proto) for attribute in protos]
            if len(attributes) > 1 and len({attribute.name for attribute in attributes}) != len(attributes):
                raise InvalidModelError(f"two attributes of {_label(proto)} have the same name")
        operator = proto.domain, proto.op_type, proto.overload
        if operator not in self._operators:
            self._operators.add((text(operator[0]), text(operator[1]), text(operator[2])))
        doc_string = proto.doc_string
        return ir.Node(
            operator[0],
            operator[1],
            inputs,
            attributes,
            overload=operator[2],
            outputs=[values[name] if name else ir.Value(name="") for name in proto.output],
            name=text(proto.name),
            doc_string=text(doc_string) if doc_string else None,
            metadata_props=metadata_of(proto.metadata_props) if proto.metadata_props else None,
            device_configurations=self._devices(proto, scopes) if proto.device_configurations else (),
        )

    def _devices(self, proto: onnx.NodeProto, scopes: _Scopes) -> tuple[Any, ...]:
        if self._ir_version < DEVICES_FROM_IR:
            raise InvalidModelError(
                f"{_label(proto)} has device configurations, which IR version {self._ir_version} does not have"
            )
        visible: dict[str, ir.Value] = {}
        for values in scopes:
            visible |= values
        devices = []
        for entry in proto.device_configurations:
            for spec in entry.sharding_spec:
                if spec.tensor_name not in visible:
                    raise InvalidModelError(f"{_label(proto)} shards {quoted(spec.tensor_name)}, which nothing defines")
            read = ir.serde.deserialize_node_device_configuration(entry, visible)
            known = self._configurations.get(entry.configuration_id)
            if known is None and read.configuration is None:
                raise InvalidModelError(f"{_label(proto)} has a device configuration that refers to none of the model")
            devices.append(read if known is None else dataclasses.replace(read, configuration=known))
        return tuple(devices)

    def _attribute(self, proto: onnx.AttributeProto, scopes: _Scopes, owner: onnx.NodeProto | str) -> ir.Attr:
        kind = _KINDS[proto.type]
        doc_string = text(proto.doc_string) or None
        if proto.ref_attr_name:
            return ir.RefAttr(text(proto.name), text(proto.ref_attr_name), kind, doc_string=doc_string)
        simple = _SIMPLE_ATTRIBUTES.get(kind)
        if simple is not None:
            try:
                return ir.Attr(text(proto.name), kind, simple(proto), doc_string=doc_string)
            except UnicodeDecodeError:
                raise InvalidModelError(
                    f"attribute {quoted(proto.name)} of {_label(owner)} holds strings that are not UTF-8"
                ) from None
        return ir.Attr(text(proto.name), kind, self._rare_attribute(kind, proto, scopes, owner), doc_string=doc_string)

    def _rare_attribute(
        self, kind: ir.AttributeType, proto: onnx.AttributeProto, scopes: _Scopes, owner: onnx.NodeProto | str
    ) -> Any:
        label = f"attribute {quoted(proto.name)} of {_label(owner)}"
        if kind == _Type.STRING:
            try:
                return proto.s.decode()
            except UnicodeDecodeError:
                return bytes(proto.s)  # custom operators keep binary data in strings
        if kind == _Type.TENSOR:
            return self._tensors.dense(proto.t, label)
        if kind == _Type.TENSORS:
            return tuple(self._tensors.dense(tensor, label) for tensor in proto.tensors)
        if kind == _Type.GRAPH:
            return self._graph(proto.g, scopes)
        if kind == _Type.GRAPHS:
            return tuple(self._graph(graph, scopes) for graph in proto.graphs)
        if kind == _Type.TYPE_PROTO:
            return type_and_shape(proto.tp, label)
        if kind == _Type.TYPE_PROTOS:
            return tuple(type_and_shape(entry, label) for entry in proto.type_protos)
        if kind == _Type.SPARSE_TENSOR:
            return self._tensors.sparse(proto.sparse_tensor, label)
        if kind == _Type.SPARSE_TENSORS:
            return tuple(self._tensors.sparse(tensor, label) for tensor in proto.sparse_tensors)
        if kind == _Type.UNDEFINED:
            raise InvalidModelError(f"{label} has no type")
        raise InvalidModelError(f"{label} is a {kind.name.lower()}, which ortopt does not carry")


def _opsets(entries: Iterable[onnx.OperatorSetIdProto]) -> list[tuple[str, int]]:
    return [(text(entry.domain), entry.version) for entry in entries]


def _declared(values: dict[str, ir.Value], name: str, what: str) -> ir.Value:
    """A new value under a name that must be free in its scope."""
    if not name:
        raise InvalidModelError(f"the name of a {what} is empty")
    if name in values:
        raise DuplicateNameError(f"{what} {quoted(name)}: another value of the same graph has this name")
    value = values[name] = ir.Value(name=text(name))
    return value


def _declare_outputs(
    nodes: Iterable[onnx.NodeProto], values: dict[str, ir.Value], infos: dict[str, onnx.ValueInfoProto]
) -> None:
    """Make all results of a graph's nodes known before the first node is read: a file need not be in order."""
    for node in nodes:
        for name in node.output:
            if not name:
                continue
            if name in values:
                _declared(values, name, "node output")
            value = values[name] = ir.Value(name=text(name))
            info = infos.get(name)
            if info is not None:
                state_type(value, info)


def _from_outside(name: str, scopes: _Scopes, node: onnx.NodeProto) -> ir.Value | None:
    """A node's input that its own graph does not define."""
    if not name:
        return None
    for values in reversed(scopes[:-1]):
        value = values.get(name)
        if value is not None:
            return value
    raise InvalidModelError(f"nothing defines {quoted(name)}, an input of {_label(node)}")


def _label(owner: onnx.NodeProto | str) -> str:
    if isinstance(owner, str):
        return f"function {owner}"
    return f"{quoted(owner.op_type)} node {quoted(owner.name)}" if owner.name else f"a node {quoted(owner.op_type)}"

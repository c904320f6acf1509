"""From protobuf messages to the IR, without losing anything on the way.

onnx-ir's own reader drops what it does not know (sparse initializers, training information, types of function inputs,
map and opaque types, the second of two initializers of one name), invents values for names that nobody defines, and
spells out whole messages in its errors. This reader carries these things, or refuses them in one line.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError
from ortopt.graph.text import quoted
from ortopt.onnx_ir_internals import fill
from ortopt.semantics import GROUP_DOMAIN
from ortopt.serialization import opset_imports, sparse
from ortopt.serialization.mapped_tensors import MappedFile, MappedTensor, data_bytes
from ortopt.serialization.repeated_names import RepeatedNameError, without_repeats
from ortopt.serialization.wire import Stripped

QUANTIZATION_KEY: Final = "quant_parameter_tensor_names"
"""Where onnx-ir keeps a value's quantization annotation in ``value.meta``."""

FOREIGN_TYPE_KEY: Final = "ortopt.type"
"""Where a value's serialized ``TypeProto`` is kept in ``value.meta`` if onnx-ir has no such type (maps, opaque)."""

DEVICES_FROM_IR: Final = 11
FUNCTION_TYPES_FROM_IR: Final = 10

_CONTRIB: Final = "com.microsoft"

_DataType = ir.DataType
_TYPED_FIELDS: Final = {
    **dict.fromkeys((_DataType.FLOAT, _DataType.COMPLEX64), "float_data"),
    **dict.fromkeys((_DataType.DOUBLE, _DataType.COMPLEX128), "double_data"),
    _DataType.INT64: "int64_data",
    **dict.fromkeys((_DataType.UINT32, _DataType.UINT64), "uint64_data"),
}
_COMPLEX: Final = frozenset({_DataType.COMPLEX64, _DataType.COMPLEX128})
_ALL_TYPED_FIELDS: Final = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")

_Type = ir.AttributeType
_KINDS: Final = {kind.value: kind for kind in _Type}
_SIMPLE_ATTRIBUTES: Final[dict[ir.AttributeType, Callable[[onnx.AttributeProto], Any]]] = {
    _Type.FLOAT: lambda proto: proto.f,
    _Type.INT: lambda proto: proto.i,
    _Type.FLOATS: lambda proto: tuple(proto.floats),
    _Type.INTS: lambda proto: tuple(proto.ints),
    _Type.STRINGS: lambda proto: tuple(text.decode() for text in proto.strings),
}

_Scopes = tuple[dict[str, ir.Value], ...]


class ExternalFiles:
    """The files of external data of one model: each is opened once, and none outside of the model's folder.

    Args:
        folder: The model's folder; None for a model that came without a place.

    Attributes:
        used: Whether anybody asked for a file.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = None if folder is None else os.path.realpath(folder)
        self._files: dict[str, MappedFile] = {}
        self.used = False

    @property
    def nbytes(self) -> int:
        """The sizes of the opened files, summed."""
        return sum(file.size for file in {file.path: file for file in self._files.values()}.values())

    @property
    def paths(self) -> tuple[str, ...]:
        """The opened files."""
        return tuple(dict.fromkeys(file.path for file in self._files.values()))

    def file(self, location: str) -> MappedFile:
        """The file at a location that a tensor names.

        Raises:
            InvalidModelError: The location leads out of the folder, or there is no readable file.
        """
        self.used = True
        if location in self._files:
            return self._files[location]
        if self._folder is None:
            raise InvalidModelError(
                f"its data are in the external file {quoted(location)}, and a model that is not loaded from a path"
                " has no folder to look in"
            )
        if not location or "\0" in location:
            raise InvalidModelError(f"{quoted(location)} is no location of external data")
        path = os.path.realpath(os.path.join(self._folder, location))  # noqa: PTH118 -- join keeps absolute paths
        if os.path.isabs(location) or os.path.commonpath([self._folder, path]) != self._folder:  # noqa: PTH117
            raise InvalidModelError(f"its external data {quoted(location)} lie outside of the model's folder")
        known = next((file for file in self._files.values() if file.path == path), None)
        try:
            self._files[location] = known or MappedFile(path)
        except InvalidModelError as error:
            raise InvalidModelError(f"its external data {quoted(location)}: {error}") from None
        except OSError as error:
            raise InvalidModelError(f"its external data {quoted(location)}: {error.strerror or error}") from None
        return self._files[location]


def decode(
    proto: onnx.ModelProto,
    stripped: Stripped,
    source: MappedFile | bytes,
    files: ExternalFiles,
    token: CancellationToken = NEVER,
) -> tuple[ir.Model, bool]:
    """Build the IR of a model.

    Args:
        proto: What protobuf parsed from ``stripped.model``.
        stripped: The model without its large tensors.
        source: What the cuts point into.
        files: Opens files of external data.
        token: Cancellation token.

    Returns:
        The model, and whether the file states types of intermediate values; those in groups do not count, which always
        state theirs.

    Raises:
        InvalidModelError: The model is broken, or has something that the IR cannot carry.
    """
    decoder = _Decoder(proto, stripped, source, files, token)
    return decoder.model(proto), decoder.typed


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
        self._stripped = stripped
        self._source = source
        self._files = files
        self._ir_version = proto.ir_version
        self._configurations: dict[str, Any] = {}
        self._operators: set[tuple[str, str, str]] = set()
        self._sparse = False
        self.typed = False

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
            for text in (configuration.name, *configuration.device_names):
                _text(text)
        self._configurations = {configuration.name: configuration for configuration in configurations}
        try:
            graph = self._graph(proto.graph, ())
        except RepeatedNameError:
            graph = self._graph(without_repeats(proto.graph), ())
        imports = graph.opset_imports
        imports.update(opset_imports.imported(_opsets(proto.opset_import)))
        opset_imports.complete(
            imports, (opset_imports.canonical(domain) for domain, _, _ in self._operators), proto.ir_version
        )
        functions = []
        for function in proto.functions:
            typed = self.typed
            functions.append(self._function(function, imports))
            if function.domain == GROUP_DOMAIN:
                self.typed = typed
        if any(domain == _CONTRIB for domain, _, _ in self._operators):  # functions take it for granted too
            imports.setdefault(_CONTRIB, 1)
        model = ir.Model(
            graph,
            ir_version=proto.ir_version,
            producer_name=_text(proto.producer_name) or None,
            producer_version=_text(proto.producer_version) or None,
            domain=_text(proto.domain) or None,
            model_version=proto.model_version or None,
            doc_string=_text(proto.doc_string) or None,
            functions=functions,
            metadata_props=_properties(proto.metadata_props),
            device_configurations=configurations,
        )
        model.meta[sparse.SPARSE_KEY] = self._sparse
        if len(model.functions) != len(functions):
            raise InvalidModelError("two of its functions have the same domain, name and overload")
        if functions and proto.ir_version < FUNCTION_TYPES_FROM_IR:
            _apply_types_of_functions(model, proto.graph.value_info)
        return model

    def _graph(self, proto: onnx.GraphProto, outer: _Scopes) -> ir.Graph:
        values: dict[str, ir.Value] = {}
        watch = self._token.checked
        inputs = [_typed(_declared(values, info.name, "graph input"), info) for info in proto.input]
        taken = {info.name for info in proto.input}
        infos = {info.name: info for info in watch(proto.value_info)}
        self.typed |= bool(infos)
        initializers: dict[str, ir.Value] = {}
        for tensor_proto in watch(proto.initializer):
            name = tensor_proto.name
            if name in initializers:
                raise RepeatedNameError(f"two initializers are named {quoted(name)}")
            if not name and not outer:  # nothing can refer to it; ONNX Runtime leaves it out
                continue
            tensor = self._tensor(tensor_proto, f"initializer {quoted(name)}")
            value = values.get(name)
            if value is None:
                value = _declared(values, name, "initializer")
                value.type = ir.TensorType(tensor.dtype)
                value.shape = tensor.shape  # type: ignore[assignment]
                if name in infos:
                    _typed(value, infos[name])
            value.const_value = tensor
            initializers[name] = value
        nodes = self._sparse_initializers(proto.sparse_initializer, values, initializers)
        _declare_outputs(watch(proto.node), values, infos)
        scopes = (*outer, values)
        nodes += [self._node(node, scopes) for node in watch(proto.node)]
        outputs = []
        for info in proto.output:
            if info.name not in values:
                raise InvalidModelError(f"nobody produces the graph output {quoted(info.name)}")
            value = values[info.name]
            if value.const_value is not None and info.name not in taken:
                value.shape = None  # what an output's declaration leaves open stays open, whatever the tensor says
            if info.name not in taken:  # what is said of an input is what counts
                _typed(value, info)
            outputs.append(value)
        for annotation in proto.quantization_annotation:
            if annotation.tensor_name in values:
                meta = values[annotation.tensor_name].meta
                meta[QUANTIZATION_KEY] = _properties(annotation.quant_parameter_tensor_names) or {}
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=(),
            doc_string=_text(proto.doc_string) or None,
            name=_text(proto.name),
            metadata_props=_properties(proto.metadata_props),
        )
        fill(graph, initializers.values(), nodes, self._token)
        return graph

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
            tensor = self._sparse_tensor(proto, f"sparse initializer {quoted(name)}")
            value = values.get(name)
            if value is not None and name not in initializers:
                value.const_value = tensor.dense(name)
                initializers[name] = value
                continue
            value = _declared(values, name, "sparse initializer")
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.dims, frozen=True)
            nodes.append(sparse.constant_node(tensor, value))
        return nodes

    def _sparse_tensor(self, proto: onnx.SparseTensorProto, label: str) -> sparse.SparseTensor:
        values, indices = self._tensor(proto.values, label), self._tensor(proto.indices, f"indices of {label}")
        tensor = sparse.SparseTensor(values, indices, tuple(proto.dims))
        self._sparse = True
        try:
            tensor.check()
        except InvalidModelError as error:
            raise InvalidModelError(f"{label}: {error}") from None
        return tensor

    def _function(self, proto: onnx.FunctionProto, imports: Mapping[str, int]) -> ir.Function:
        label = quoted(f"{proto.domain}.{proto.name}")
        values: dict[str, ir.Value] = {}
        watch = self._token.checked
        infos = {info.name: info for info in watch(proto.value_info)}
        self.typed |= bool(infos)
        inputs = [_declared(values, name, f"input of function {label}") for name in proto.input]
        for value in inputs:
            if value.name in infos:
                _typed(value, infos[value.name])
        _declare_outputs(watch(proto.node), values, infos)
        nodes = [self._node(node, (values,)) for node in watch(proto.node)]
        outputs = []
        for name in proto.output:
            if name not in values:
                raise InvalidModelError(f"nobody produces {quoted(name)}, an output of function {label}")
            outputs.append(values[name])
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=(),
            doc_string=_text(proto.doc_string) or None,
            opset_imports=opset_imports.imported_by_function(_opsets(proto.opset_import), imports),
            name=_text(proto.name),
            metadata_props=_properties(proto.metadata_props),
        )
        fill(graph, (), nodes, self._token)
        attributes = [self._attribute(attribute, (), label) for attribute in proto.attribute_proto]
        attributes += [ir.Attr(_text(name), ir.AttributeType.UNDEFINED, None) for name in proto.attribute]
        if len({attribute.name for attribute in attributes}) != len(attributes):
            raise InvalidModelError(f"two attributes of function {label} have the same name")
        return ir.Function(
            _text(proto.domain), _text(proto.name), _text(proto.overload), graph=graph, attributes=attributes
        )

    def _node(self, proto: onnx.NodeProto, scopes: _Scopes) -> ir.Node:
        values = scopes[-1]
        inputs: list[ir.Value | None] = []
        for name in proto.input:
            value = values.get(name)
            inputs.append(value if value is not None else _from_outside(name, scopes, proto))
        attributes: Sequence[ir.Attr] = ()
        if proto.attribute:
            given: Sequence[onnx.AttributeProto] = proto.attribute
            if len(given) > 1 and proto.op_type == "Constant" and not opset_imports.canonical(proto.domain):
                given = given[:1]  # ONNX Runtime reads the first one
            attributes = [self._attribute(attribute, scopes, proto) for attribute in given]
            if len(attributes) > 1 and len({attribute.name for attribute in attributes}) != len(attributes):
                raise InvalidModelError(f"two attributes of {_label(proto)} have the same name")
        operator = proto.domain, proto.op_type, proto.overload
        if operator not in self._operators:
            self._operators.add((_text(operator[0]), _text(operator[1]), _text(operator[2])))
        doc_string = proto.doc_string
        return ir.Node(
            operator[0],
            operator[1],
            inputs,
            attributes,
            overload=operator[2],
            outputs=[values[name] if name else ir.Value(name="") for name in proto.output],
            name=_text(proto.name),
            doc_string=_text(doc_string) if doc_string else None,
            metadata_props=_properties(proto.metadata_props) if proto.metadata_props else None,
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
        found = []
        for entry in proto.device_configurations:
            for spec in entry.sharding_spec:
                if spec.tensor_name not in visible:
                    raise InvalidModelError(f"{_label(proto)} shards {quoted(spec.tensor_name)}, which nobody defines")
            read = ir.serde.deserialize_node_device_configuration(entry, visible)
            known = self._configurations.get(entry.configuration_id)
            if known is None and read.configuration is None:
                raise InvalidModelError(f"{_label(proto)} has a device configuration that refers to none of the model")
            found.append(read if known is None else dataclasses.replace(read, configuration=known))
        return tuple(found)

    def _attribute(self, proto: onnx.AttributeProto, scopes: _Scopes, owner: onnx.NodeProto | str) -> ir.Attr:
        kind = _KINDS[proto.type]
        doc_string = _text(proto.doc_string) or None
        if proto.ref_attr_name:
            return ir.RefAttr(_text(proto.name), _text(proto.ref_attr_name), kind, doc_string=doc_string)
        simple = _SIMPLE_ATTRIBUTES.get(kind)
        if simple is not None:
            try:
                return ir.Attr(_text(proto.name), kind, simple(proto), doc_string=doc_string)
            except UnicodeDecodeError:
                raise InvalidModelError(
                    f"attribute {quoted(proto.name)} of {_label(owner)} holds strings that are not UTF-8"
                ) from None
        return ir.Attr(_text(proto.name), kind, self._rare_attribute(kind, proto, scopes, owner), doc_string=doc_string)

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
            return self._tensor(proto.t, label)
        if kind == _Type.TENSORS:
            return tuple(self._tensor(tensor, label) for tensor in proto.tensors)
        if kind == _Type.GRAPH:
            return self._graph(proto.g, scopes)
        if kind == _Type.GRAPHS:
            return tuple(self._graph(graph, scopes) for graph in proto.graphs)
        if kind == _Type.TYPE_PROTO:
            return _type_and_shape(proto.tp, label)
        if kind == _Type.TYPE_PROTOS:
            return tuple(_type_and_shape(entry, label) for entry in proto.type_protos)
        if kind == _Type.SPARSE_TENSOR:
            return self._sparse_tensor(proto.sparse_tensor, label)
        if kind == _Type.SPARSE_TENSORS:
            return tuple(self._sparse_tensor(tensor, label) for tensor in proto.sparse_tensors)
        if kind == _Type.UNDEFINED:
            raise InvalidModelError(f"{label} has no type")
        raise InvalidModelError(f"{label} is a {kind.name.lower()}, which ortopt does not carry")

    def _tensor(self, proto: onnx.TensorProto, label: str) -> ir.TensorProtocol:
        try:
            return self._checked_tensor(proto)
        except InvalidModelError as error:
            raise InvalidModelError(f"{label}: {error}") from None

    def _checked_tensor(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        try:
            dtype = ir.DataType(proto.data_type)
        except ValueError:
            raise InvalidModelError(f"its data type {proto.data_type} does not exist") from None
        if proto.HasField("segment"):
            raise InvalidModelError("it is stored in segments, which ortopt does not carry")
        dims = list(proto.dims)
        if any(dim < 0 for dim in dims):
            raise InvalidModelError(f"it has a negative dimension: {dims}")
        common: dict[str, Any] = {
            "shape": ir.Shape(dims, frozen=True),
            "name": _text(proto.name),
            "doc_string": _text(proto.doc_string) or None,
            "metadata_props": _properties(proto.metadata_props),
        }
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return self._external_tensor(proto, dtype, common)
        if dtype == ir.DataType.STRING:
            if len(proto.string_data) != math.prod(dims):
                raise InvalidModelError(f"it has {len(proto.string_data)} strings where its shape needs others: {dims}")
            return ir.StringTensor(list(proto.string_data), **common)
        if proto.HasField("raw_data"):
            raw = proto.raw_data
            cut = self._stripped.cut(raw)
            if cut is None:
                return MappedTensor(raw, 0, len(raw), dtype=dtype, **common)
            return MappedTensor(self._source, cut.offset, cut.length, dtype=dtype, **common)
        return _typed_tensor(proto, dtype, dims)

    def _external_tensor(self, proto: onnx.TensorProto, dtype: ir.DataType, common: dict[str, Any]) -> MappedTensor:
        if proto.HasField("raw_data") or any(len(getattr(proto, field)) for field in _ALL_TYPED_FIELDS):
            raise InvalidModelError("it has both data of its own and external data")
        entries = _properties(proto.external_data) or {}
        needed = data_bytes(dtype, list(proto.dims))
        offset = _number(entries, "offset", 0)
        length = _number(entries, "length", needed)
        if needed == 0 and length == 0:
            return MappedTensor(b"", 0, 0, dtype=dtype, external=True, **common)
        file = self._files.file(entries.get("location", ""))
        return MappedTensor(file, offset, length, dtype=dtype, external=True, **common)


def _number(entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidModelError(f"the {key} of its external data is {quoted(text)}")
    return int(text)


def _typed_tensor(proto: onnx.TensorProto, dtype: ir.DataType, dims: list[int]) -> ir.TensorProtocol:
    """A tensor whose numbers are in a field of their own type; the few that there are stay as protobuf has them."""
    if dtype == ir.DataType.UNDEFINED:
        raise InvalidModelError("it has no data type")
    field = _TYPED_FIELDS.get(dtype, "int32_data")
    others = [name for name in _ALL_TYPED_FIELDS if name != field and len(getattr(proto, name))]
    if others:
        raise InvalidModelError(f"its data are in {others[0]}, where those of a {dtype.name} tensor never are")
    count = math.prod(dims) * (2 if dtype in _COMPLEX else 1)
    if dtype.bitwidth in {2, 4}:
        count = data_bytes(dtype, dims)
    if len(getattr(proto, field)) != count:
        raise InvalidModelError(f"it has {len(getattr(proto, field))} numbers in {field} where its shape needs {count}")
    own = onnx.TensorProto()  # a copy: the original would keep the whole model's message alive
    own.CopyFrom(proto)
    tensor = ir.serde.TensorProtoTensor(own)
    del own.metadata_props[:]  # the tensor has read them; onnx-ir would write them twice
    return tensor


def _properties(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    return {_text(entry.key): _text(entry.value) for entry in entries} or None


def _text(text: str) -> str:
    """The text itself; protobuf gives bytes where a file holds what is not UTF-8."""
    if type(text) is not str:
        raise InvalidModelError(f"a text in it is not UTF-8: {quoted(text)}")
    return text


def _opsets(entries: Iterable[onnx.OperatorSetIdProto]) -> list[tuple[str, int]]:
    return [(_text(entry.domain), entry.version) for entry in entries]


def _declared(values: dict[str, ir.Value], name: str, what: str) -> ir.Value:
    """A new value under a name that must be free in its scope."""
    if not name:
        raise InvalidModelError(f"the name of a {what} is empty")
    if name in values:
        raise RepeatedNameError(f"{what} {quoted(name)}: another value of the same graph has this name")
    value = values[name] = ir.Value(name=_text(name))
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
            value = values[name] = ir.Value(name=_text(name))
            info = infos.get(name)
            if info is not None:
                _typed(value, info)


def _from_outside(name: str, scopes: _Scopes, node: onnx.NodeProto) -> ir.Value | None:
    """A node's input that its own graph does not define."""
    if not name:
        return None
    for values in reversed(scopes[:-1]):
        value = values.get(name)
        if value is not None:
            return value
    raise InvalidModelError(f"nobody defines {quoted(name)}, an input of {_label(node)}")


def _label(owner: onnx.NodeProto | str) -> str:
    if isinstance(owner, str):
        return f"function {owner}"
    return f"{quoted(owner.op_type)} node {quoted(owner.name)}" if owner.name else f"a node {quoted(owner.op_type)}"


def _typed(value: ir.Value, info: onnx.ValueInfoProto) -> ir.Value:
    """Give a value the type, shape, documentation and metadata that a file tells about it."""
    proto = info.type
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        element = tensor.elem_type
        if element:
            value.type = ir.TensorType(_data_type(element, info.name), denotation=_text(proto.denotation) or None)
        if tensor.HasField("shape"):
            value.shape = _shape(tensor.shape)
    elif kind is not None:
        value.type = _type(proto)
        if value.type is None:
            value.meta[FOREIGN_TYPE_KEY] = proto.SerializeToString(deterministic=True)
        else:
            value.shape = _shape_of_type(proto)
    if info.metadata_props:
        value.metadata_props.update(_properties(info.metadata_props) or {})
    if info.doc_string:
        value.doc_string = _text(info.doc_string)
    return value


def _data_type(number: int, name: str) -> ir.DataType:
    try:
        return ir.DataType(number)
    except ValueError:
        raise InvalidModelError(f"{quoted(name)} has the data type {number}, which does not exist") from None


def _type(proto: onnx.TypeProto) -> Any:
    """The type in the IR, or None where onnx-ir has none."""
    kind = proto.WhichOneof("value")
    denotation = _text(proto.denotation) or None
    if kind == "tensor_type":
        return ir.TensorType(_data_type(proto.tensor_type.elem_type, "a type"), denotation=denotation)
    if kind == "sparse_tensor_type":
        return ir.SparseTensorType(_data_type(proto.sparse_tensor_type.elem_type, "a type"), denotation=denotation)
    if kind in {"sequence_type", "optional_type"}:
        element = _type(getattr(proto, kind).elem_type)
        make = ir.SequenceType if kind == "sequence_type" else ir.OptionalType
        return None if element is None else make(element, denotation=denotation)
    return None


def _type_and_shape(proto: onnx.TypeProto, label: str) -> ir.TypeAndShape:
    found = _type(proto)
    if found is None and proto.WhichOneof("value") is not None:
        raise InvalidModelError(f"{label} is a {proto.WhichOneof('value')}, which ortopt does not carry")
    return ir.TypeAndShape(found, _shape_of_type(proto))


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
            dims.append(ir.SymbolicDim(_text(dim.dim_param)))
        else:  # some exporters write -1 for what they do not know
            dims.append(ir.SymbolicDim(None))
        denotation = _text(dim.denotation)
        denoted = denoted or bool(denotation)
        denotations.append(denotation or None)
    return ir.Shape(dims, denotations=denotations if denoted else None, frozen=True)


def _apply_types_of_functions(model: ir.Model, infos: Iterable[onnx.ValueInfoProto]) -> None:
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
            _typed(value, info)

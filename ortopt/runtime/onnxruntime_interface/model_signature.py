"""A model's signature as an ONNX Runtime session of its own: the same inputs, outputs and metadata, nothing else.

It answers what a session is asked about its model with ONNX Runtime's own objects, and refuses wrong inputs with ONNX
Runtime's own errors: none of its messages is written twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortopt.runtime.execution.group_spec import argument_of, free_prefix
from ortopt.runtime.execution.weights import place
from ortopt.runtime.onnxruntime_internals import add_constant, auxiliary_session, failure, small_model
from ortopt.semantics.domains import ML
from ortopt.serialization.types_of_values import FOREIGN_TYPE_KEY

_ACCEPTED: Final = "accepted"
_SHAPE: Final = "shape"
_CODE: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")


class ModelSignature:
    """Inputs, outputs and metadata of a model.

    Args:
        model: The model.

    Attributes:
        session: ONNX Runtime's C++ session.
        inputs: ``onnxruntime.NodeArg`` of each input that has no default.
        outputs: The same for the outputs.
        overridable: The same for the inputs that have a default.
        metadata: ``onnxruntime.ModelMetadata``.
    """

    def __init__(self, model: ir.Model) -> None:
        import onnxruntime

        prefix = free_prefix(value.name for value in (*model.graph.inputs, *model.graph.outputs))
        self._accepted = prefix + _ACCEPTED
        defaults = {
            value.name or "": value.const_value
            for value in model.graph.inputs
            if value.const_value is not None and value.is_initializer()
        }
        placed = place(_proto(model, prefix), defaults)
        self._kept = placed.kept
        self.session = auxiliary_session(placed.model, placed.entries)
        self._quiet = onnxruntime.RunOptions()
        self._quiet.log_severity_level = 4
        self.inputs = list(self.session.inputs_meta)
        self.outputs = list(self.session.outputs_meta)[: len(model.graph.outputs)]
        self.overridable = list(self.session.overridable_initializers)
        self.metadata = self.session.model_meta
        self._required = [argument.name for argument in self.inputs if not argument.type.startswith("optional")]
        self._known = {argument.name for argument in self.outputs}

    def check_inputs(self, feeds: Mapping[str, Any]) -> None:
        """Refuse inputs as ONNX Runtime refuses them.

        Raises:
            ValueError: An input is missing.
            onnxruntime.InvalidArgument: A name, a type, a rank or a size is wrong.
        """
        missing = self._missing(feeds)
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(feeds)}).")
        self.session.run([self._accepted], feeds, self._quiet)

    def check_bound(self, feeds: Mapping[str, Any]) -> None:
        """Refuse bound inputs among which one is missing, as ONNX Runtime does when a kernel asks for it.

        Raises:
            onnxruntime.Fail: One is missing.
            onnxruntime.InvalidArgument: And others are wrong, which it says first.
        """
        missing = self._missing(feeds)
        if missing:
            self.session.run([self._accepted], feeds, self._quiet)
            raise failure(f"Missing Input: {missing[0]}")

    def _missing(self, feeds: Mapping[str, Any]) -> list[str]:
        return [name for name in self._required if name not in feeds]

    def check_outputs(self, names: Sequence[str]) -> None:
        """Refuse names of outputs as ONNX Runtime refuses them.

        Raises:
            onnxruntime.InvalidArgument: There is no such output.
            TypeError: They are not a sequence of names.
        """
        if isinstance(names, str) or not self._known.issuperset(names):
            self.session.run(names, {}, self._quiet)  # the names are looked at first


def without_code(error: Exception) -> str:
    """What ONNX Runtime says, as it tells it where no class of error goes with it."""
    return _CODE.sub("", str(error))


def _proto(model: ir.Model, prefix: str) -> onnx.ModelProto:
    proto = small_model(model.graph.name or "main")
    proto.producer_name, proto.producer_version = model.producer_name or "", model.producer_version or ""
    proto.domain, proto.doc_string = model.domain or "", model.doc_string or ""
    if model.model_version is not None:
        proto.model_version = model.model_version
    proto.opset_import.add(domain=ML, version=1)
    for key, text in model.metadata_props.items():
        proto.metadata_props.add(key=key, value=text)
    graph = proto.graph
    graph.doc_string = model.graph.doc_string or ""
    for value in model.graph.inputs:
        graph.input.append(argument_of(value).declared())
    make = onnx.helper.make_node
    none = onnx.helper.make_tensor("none", onnx.TensorProto.INT64, [1], [0])
    # No elements, which is not known before it is run: a tensor that is reshaped to it may have any shape.
    graph.node.append(make("Constant", [], [prefix + "zero"], value=none))
    graph.node.append(make("NonZero", [prefix + "zero"], [prefix + "places"]))
    graph.node.append(make("Constant", [], [prefix + "flat"], value_ints=[-1]))
    graph.node.append(make("Reshape", [prefix + "places", prefix + "flat"], [prefix + _SHAPE]))
    graph.output.extend(argument_of(value).declared() for value in model.graph.outputs)
    for i, value in enumerate(dict.fromkeys(model.graph.outputs)):  # a model may give one twice
        graph.node.extend(_something(value, f"{prefix}{i}", prefix + _SHAPE))
    add_constant(proto, prefix + _ACCEPTED)
    return proto


def _maps(type_: onnx.TypeProto, name: str, constant: str) -> list[onnx.NodeProto]:
    """The same for a sequence of maps, which only ZipMap makes."""
    numbers = type_.sequence_type.elem_type.map_type.key_type == onnx.TensorProto.INT64
    labels = {"classlabels_int64s": [0]} if numbers else {"classlabels_strings": [""]}
    number = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[1, 1], raw_data=bytes(4))
    make = onnx.helper.make_node
    return [
        make("Constant", [], [constant], value=number),
        make("ZipMap", [constant], [name], domain=ML, **labels),
    ]


def _something(value: ir.Value, constant: str, shape: str) -> list[onnx.NodeProto]:
    """Nodes that give an output its type, and next to nothing as its contents."""
    make = onnx.helper.make_node
    name = value.name or ""
    type_ = value.type
    if value.is_graph_input():
        return []
    if isinstance(type_, ir.SequenceType) and isinstance(type_.elem_type, ir.TensorType):
        return [make("SequenceEmpty", [], [name], dtype=type_.elem_type.dtype.value)]
    if isinstance(type_, ir.OptionalType):
        declared = ir.serde.serialize_value(ir.Value(name="x", type=type_.elem_type)).type
        return [make("Optional", [], [name], type=declared)]
    if (foreign := value.meta.get(FOREIGN_TYPE_KEY)) is not None:
        return _maps(onnx.TypeProto.FromString(foreign), name, constant)
    dtype = value.dtype or ir.DataType.FLOAT
    element = onnx.TensorProto(data_type=dtype.value, dims=[1])
    if dtype == ir.DataType.STRING:
        element.string_data.append(b"")
    else:
        element.raw_data = bytes(max(1, dtype.bitwidth // 8))
    return [make("Constant", [], [constant], value=element), make("Reshape", [constant, shape], [name])]

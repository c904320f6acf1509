"""A model's interface as an ONNX Runtime session of its own: the same inputs, outputs and metadata, nothing else.

It answers what a session is asked about its model with ONNX Runtime's own objects, and refuses wrong inputs with ONNX
Runtime's own errors: none of its messages is written twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortopt.evaluate import shares_threads
from ortopt.graph.decode import FOREIGN_TYPE_KEY
from ortopt.runtime.recipes import argument_of

_PREFIX: Final = "ortopt."
"""What the names of a stand-in's own values begin with."""
_OPSET: Final = 21  # Reshape of every type, Optional
_IR: Final = 10


class Interface:
    """Inputs, outputs and metadata of a model.

    Args:
        model: The model.

    Attributes:
        inputs: ``onnxruntime.NodeArg`` of each input that has no default.
        outputs: The same for the outputs.
        overridable: The same for the inputs that have a default.
        metadata: ``onnxruntime.ModelMetadata``.
    """

    def __init__(self, model: ir.Model) -> None:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as binding

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.use_per_session_threads = not shares_threads()
        options.log_severity_level = 4
        prefix = _unused_prefix(model)
        self._accepted = f"{prefix}accepted"
        self._session = binding.InferenceSession(options, _proto(model, prefix).SerializeToString(), False, False)
        self._session.initialize_session(["CPUExecutionProvider"], [{}], set())
        self._quiet = onnxruntime.RunOptions()
        self._quiet.log_severity_level = 4
        self.inputs = list(self._session.inputs_meta)
        self.outputs = [one for one in self._session.outputs_meta if one.name != self._accepted]
        self.overridable = list(self._session.overridable_initializers)
        self.metadata = self._session.model_meta

    @property
    def session(self) -> Any:
        """ONNX Runtime's C++ session."""
        return self._session

    def check_inputs(self, feeds: Mapping[str, Any]) -> None:
        """Refuse inputs as ONNX Runtime refuses them.

        Raises:
            ValueError: An input is missing.
            onnxruntime.InvalidArgument: A name, a type, a rank or a size is wrong.
        """
        self.check_names(feeds)
        self._session.run([self._accepted], feeds, self._quiet)

    def check_names(self, feeds: Mapping[str, Any]) -> None:
        """Refuse feeds in which an input is missing.

        Raises:
            ValueError: One is.
        """
        missing = [one.name for one in self.inputs if one.name not in feeds and not one.type.startswith("optional")]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(feeds)}).")

    def check_outputs(self, names: Sequence[str]) -> None:
        """Refuse names of outputs as ONNX Runtime refuses them.

        Raises:
            onnxruntime.InvalidArgument: There is no such output.
            TypeError: They are not a sequence of names.
        """
        known = {one.name for one in self.outputs}
        if isinstance(names, str) or any(name not in known for name in names):
            self._session.run(names, {}, self._quiet)  # the names are looked at first


def _unused_prefix(model: ir.Model) -> str:
    names = {value.name or "" for value in (*model.graph.inputs, *model.graph.outputs)}
    prefix = _PREFIX
    while any(name.startswith(prefix) for name in names):
        prefix += "."
    return prefix


def _proto(model: ir.Model, prefix: str) -> onnx.ModelProto:
    proto = onnx.ModelProto(
        ir_version=_IR,
        producer_name=model.producer_name or "",
        producer_version=model.producer_version or "",
        domain=model.domain or "",
        model_version=model.model_version,
        doc_string=model.doc_string or "",
    )
    proto.opset_import.add(domain="", version=_OPSET)
    proto.opset_import.add(domain="ai.onnx.ml", version=1)
    for key, text in model.metadata_props.items():
        proto.metadata_props.add(key=key, value=text)
    graph = proto.graph
    graph.name = model.graph.name or "main"
    graph.doc_string = model.graph.doc_string or ""
    for value in model.graph.inputs:
        graph.input.append(argument_of(value).declared())
        if value.const_value is not None and value.is_initializer():
            default = ir.serde.serialize_tensor(value.const_value)
            default.name = value.name or ""
            graph.initializer.append(default)
    make = onnx.helper.make_node
    none = onnx.helper.make_tensor("none", onnx.TensorProto.INT64, [1], [0])
    # No elements, which nobody knows before it is run: a tensor that is reshaped to it may have any shape.
    zero, places, flat, shape, accepted = (prefix + name for name in ("zero", "places", "flat", "shape", "accepted"))
    graph.node.append(make("Constant", [], [zero], value=none))
    graph.node.append(make("NonZero", [zero], [places]))
    graph.node.append(make("Constant", [], [flat], value_ints=[-1]))
    graph.node.append(make("Reshape", [places, flat], [shape]))
    graph.output.extend(argument_of(value).declared() for value in model.graph.outputs)
    for i, value in enumerate(dict.fromkeys(model.graph.outputs)):  # a model may give one twice
        graph.node.extend(_something(value, f"{prefix}{i}", shape))
    graph.node.append(make("Constant", [], [accepted], value_int=1))
    graph.output.append(onnx.helper.make_tensor_value_info(accepted, onnx.TensorProto.INT64, []))
    return proto


def _maps(type_: onnx.TypeProto, name: str, constant: str) -> list[onnx.NodeProto]:
    """The same for a sequence of maps, which only ZipMap makes."""
    numbers = type_.sequence_type.elem_type.map_type.key_type == onnx.TensorProto.INT64
    labels = {"classlabels_int64s": [0]} if numbers else {"classlabels_strings": [""]}
    one = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT, dims=[1, 1], raw_data=bytes(4))
    make = onnx.helper.make_node
    return [
        make("Constant", [], [constant], value=one),
        make("ZipMap", [constant], [name], domain="ai.onnx.ml", **labels),
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
    one = onnx.TensorProto(data_type=dtype.value, dims=[1])
    if dtype == ir.DataType.STRING:
        one.string_data.append(b"")
    else:
        one.raw_data = bytes(max(1, dtype.bitwidth // 8))
    return [make("Constant", [], [constant], value=one), make("Reshape", [constant, shape], [name])]

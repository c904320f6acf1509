"""What has no rule of ours: onnx's own inference, for one node."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortopt.analysis.shape_rules.control_flow import bodies
from ortopt.analysis.shape_rules.registry import Call, Steps
from ortopt.graph.facts import Dims, shape_of
from ortopt.graph.symbolic import Dim, canonical

_LATEST = 2**31 - 1  # of what the schemas' registry can be asked for
_MAX_BYTES = 4096  # constants beyond this are data: no shape depends on them


def infer_by_schema(call: Call) -> Steps | None:
    """Ask the C++ inference of the op's schema, given the inputs' types and small constants.

    An op without a schema (of an unknown domain, newer than the schemas) is one that inference cannot know: what the
    file declares of its results, and of what its graphs are given, is believed.
    """
    from onnx import defs

    node = call.node
    version = min(call.version, _LATEST)
    call.believed = not defs.has(node.op_type, max_inclusive_version=version, domain=node.domain)
    if any(attribute.type in _GRAPHS for attribute in node.attributes.values()):
        return bodies(call)
    if not call.believed and not any(attribute.is_ref() for attribute in node.attributes.values()):
        _ask_schema(call)
    return None


def _ask_schema(call: Call) -> None:
    from onnx import defs, shape_inference

    node = call.node
    schema = defs.get_schema(node.op_type, min(call.version, _LATEST), node.domain)
    proto, names = _proto(node)
    types, data = {}, {}
    for index, name in names.items():
        value = call.value(index)
        if value.type is None:
            return
        types[name] = _type_proto(value)
        constant = call.constant(index)
        if constant is not None and constant.nbytes <= _MAX_BYTES:
            data[name] = ir.to_proto(constant)
    found = shape_inference.infer_node_outputs(schema, proto, types, data)
    for index, name in enumerate(proto.output):
        if name in found:
            _take(call, index, found[name])


_GRAPHS = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})


def _proto(node: ir.Node) -> tuple[Any, dict[int, str]]:
    """The node with names of our own, for new values have none yet; and the names of its inputs."""
    import onnx

    names = {index: f"i{index}" for index, value in enumerate(node.inputs) if value is not None}
    proto = onnx.NodeProto(
        op_type=node.op_type,
        domain=node.domain,
        input=[names.get(index, "") for index in range(len(node.inputs))],
        output=[f"o{index}" for index in range(len(node.outputs))],
    )
    proto.attribute.extend(ir.to_proto(attribute) for attribute in node.attributes.values())
    return proto, names


def _type_proto(value: ir.Value) -> Any:
    assert value.type is not None
    proto = ir.serde.serialize_type(value.type)
    shape = shape_of(value)
    if shape is not None and isinstance(value.type, ir.TensorType):
        ir.serde.serialize_shape_into(proto, shape)
    return proto


def _take(call: Call, index: int, proto: Any) -> None:
    found = ir.serde.deserialize_type_proto_for_type(proto)
    dims: Dims | None = None
    if proto.HasField("tensor_type") and proto.tensor_type.HasField("shape"):
        dims = tuple(_dim(entry) for entry in proto.tensor_type.shape.dim)
    call.set(index, found, dims)


def _dim(entry: Any) -> Dim:
    if entry.HasField("dim_value"):
        return int(entry.dim_value)
    return canonical(entry.dim_param or None)

"""Converted nodes, put in the places of the nodes that they replace; outputs and graphs stay the same objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.graph import scope
from ortopt.graph.heritage import Heritage
from ortopt.graph.names import NameRegistry
from ortopt.onnx_ir_internals import use_count
from ortopt.opset_conversion.converter import Case


def put_in_place(model: ir.Model, cases: Iterable[Case], token: CancellationToken) -> None:
    """Replace all nodes of some cases by their answers.

    Args:
        model: The model of the nodes.
        cases: The cases.
        token: Cancellation token.
    """
    names = NameRegistry(lambda: scope.graphs(model, token))
    for case in cases:
        for node in token.checked(case.nodes):
            _replace(node, case, names)


def _replace(node: ir.Node, case: Case, names: NameRegistry) -> None:
    """Make a node what the answer's last node is, with the answer's other nodes before it; its outputs stay."""
    values: dict[str, ir.Value | None] = {"": None}
    for i, value in enumerate(node.inputs):
        values[f"{case.number}.i{i}"] = value
    before = list(dict.fromkeys(value for value in node.inputs if value is not None))
    graph = scope.graph_of(node)
    heritage = Heritage([node])

    def insert(op_type: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr], outputs: int) -> ir.Node:
        new = ir.Node("", op_type, inputs, attributes, num_outputs=outputs)
        new.name = names.fresh(heritage.name_of(new))
        names.name_results(new)
        heritage.give(new)
        graph.insert_before(node, new)
        return new

    for tensor in case.added:
        content = ir.AttrTensor("value", _tensor(tensor))
        values[tensor.name] = insert("Constant", [], [content], 1).outputs[0]
    for proto in case.answer[:-1]:
        new = insert(proto.op_type, [values[name] for name in proto.input], _attributes(proto, node), len(proto.output))
        values.update(zip(proto.output, new.outputs, strict=True))
    last = case.answer[-1]
    attributes = _attributes(last, node)
    node.op_type = last.op_type
    node.attributes.clear()
    node.attributes.update({attribute.name: attribute for attribute in attributes})
    node.resize_inputs(len(last.input))
    for i, name in enumerate(last.input):
        node.replace_input_with(i, values[name])
    for value in before:
        _forget_if_unused(value)


def _attributes(proto: onnx.NodeProto, node: ir.Node) -> list[ir.Attr]:
    """The answer's attributes; graphs, of which the converter has seen none, are the node's own."""
    attributes = []
    for attribute in proto.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            attributes.append(node.attributes[attribute.name])
        elif attribute.type == onnx.AttributeProto.TENSOR:
            attributes.append(ir.AttrTensor(attribute.name, _tensor(attribute.t)))
        else:
            attributes.append(ir.serde.deserialize_attribute(attribute))
    return attributes


def _tensor(proto: onnx.TensorProto) -> ir.TensorProtocol:
    own = onnx.TensorProto()
    own.CopyFrom(proto)
    own.name = ""
    return ir.serde.deserialize_tensor(own)


def _forget_if_unused(value: ir.Value) -> None:
    """Drop a constant that has become an attribute."""
    if use_count(value) or value.is_graph_output() or value.is_graph_input():
        return
    producer = value.producer()
    if value.is_initializer() and value.name is not None:
        assert isinstance(value.graph, ir.Graph)
        del value.graph.initializers[value.name]
    elif producer is not None and producer.op_type == "Constant" and not producer.domain:
        scope.graph_of(producer).remove(producer)

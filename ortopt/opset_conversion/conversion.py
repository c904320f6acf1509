"""Another opset of ai.onnx for a model: each node whose operator changed in between is converted alone.

onnx's converter takes whole models: it loses functions, metadata and symbolic shapes on the way, does not look into
subgraphs, and copies all weights several times. Here it gets one small model of loose nodes, each distinct one once,
with typed inputs instead of weights, in a process of its own; its answers are put in the nodes' places. So subgraphs
and functions are converted too, and everything else stays the very object that it was. What it cannot do is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Final

import onnx
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.analysis.kernels import official_schema, type_string
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.graph.heritage import Heritage
from ortopt.graph.names import NameRegistry
from ortopt.onnx_ir_internals import use_count
from ortopt.opset_conversion.converter import Case, converted_cases, refusal
from ortopt.opset_conversion.raising import least_ir_version


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


_NEGATIVE_AXES_SINCE: Final = 11
"""Below, an operator that reads the same may take fewer values: the converter decides."""


def convert(model: ir.Model, version: int, token: CancellationToken = NEVER) -> ir.Model:
    """Raise, or lower where onnx knows how, the opset of ai.onnx in a model and its local functions.

    Args:
        model: The model; it is changed. Where an error is raised, no more than inferred types are.
        version: The opset version that it shall import.
        token: Cancellation token; the model may be torn then.

    Returns:
        The model. Its IR version is raised only where the opset needs a newer one.

    Raises:
        UsageError: There is no such opset, or a node cannot be converted; one line that names it.
        OptimizationCancelled: If the token was set.
    """
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= version <= newest:
        raise UsageError(f"onnx {onnx.__version__} knows the opsets 1 to {newest} of ai.onnx, not {version}")
    bodies = [(model.graph, model.opset_imports)]
    bodies += [(function.graph, function.opset_imports) for function in model.functions.values()]
    bodies = [(graph, imports) for graph, imports in bodies if imports.get("", version) != version]
    changed: dict[ir.Node, int] = {}
    fewer_types: dict[ir.Node, int] = {}
    for graph, imports in bodies:
        _sort_out(model, graph, imports[""], version, changed, fewer_types, token)
    if changed or fewer_types:
        shapes.infer_model(model, token)
    for node, have in token.checked(fewer_types.items()):
        _check_types(node, have, version)
    if changed:
        put_in_place(model, converted_cases(changed, version, token), token)
    for _, imports in bodies:
        imports[""] = version
    if bodies:
        model.ir_version = max(model.ir_version, least_ir_version(version))
    return model


@functools.lru_cache(1 << 12)
def _signature(op_type: str, version: int) -> tuple[object, ...]:
    """What a schema says of inputs, outputs and attributes, their types apart."""
    schema = official_schema("", op_type, version)
    slots = tuple((formal.name, formal.option) for formal in (*schema.inputs, *schema.outputs))
    attributes = (
        (name, attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in sorted(schema.attributes.items())
    )
    return slots, tuple(attributes)


def _sort_out(
    model: ir.Model,
    body: ir.Graph,
    have: int,
    version: int,
    changed: dict[ir.Node, int],
    fewer_types: dict[ir.Node, int],
    token: CancellationToken,
) -> None:
    """Find the nodes, at any depth, whose operator is another one at the new version, or takes fewer types there."""
    for graph in scope.below(body, token):
        for node in token.checked(graph):
            if node.domain or (model.functions and node.op_identifier() in model.functions):
                continue
            old, new = (official_schema("", node.op_type, opset) for opset in (have, version))
            if old is None or new is None:
                raise refusal(
                    node, have, version, f"ai.onnx does not have it at opset {have if old is None else version}"
                )
            if old.since_version == new.since_version:
                continue
            if node.op_type == "Constant":
                _check_constant(node, new, have, version)
            elif any(attribute.is_ref() for attribute in node.attributes.values()):
                if not _alike(node.op_type, have, version):
                    raise refusal(node, have, version, "it has an attribute of the function, and its operator changed")
                if version < have:
                    fewer_types[node] = have
            elif _NEGATIVE_AXES_SINCE <= version < have and _alike(node.op_type, have, version):
                fewer_types[node] = have
            else:
                changed[node] = have


def _alike(op_type: str, have: int, version: int) -> bool:
    """Whether an operator's versions differ in nothing but the types that they take."""
    low, high = sorted((have, version))
    return len({_signature(op_type, opset) for opset in range(low, high + 1)}) == 1


def _check_types(node: ir.Node, have: int, version: int) -> None:
    """A node whose operator took fewer types before is what it was if its own are among these."""
    schema = official_schema("", node.op_type, version)
    constraints = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for i, value in enumerate(values):
            formal = formals[min(i, len(formals) - 1)]
            allowed = constraints.get(formal.type_str, [formal.type_str])
            if value is None or not value.name or (value.type and type_string(value.type) in allowed):
                continue
            what = "a type that is not known" if value.type is None else f"the type {value.type}"
            raise refusal(node, have, version, f"it has {what}, and fewer are allowed there")


def _check_constant(node: ir.Node, schema: onnx.defs.OpSchema, have: int, version: int) -> None:
    """A Constant is what it was, weights and all, unless the new version cannot say it."""
    for name, attribute in node.attributes.items():
        if name not in schema.attributes:
            raise refusal(node, have, version, f"it has no attribute {name!r} there")
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            dtype = attribute.as_tensor().dtype
            if type_string(ir.TensorType(dtype)) not in schema.type_constraints[0].allowed_type_strs:
                raise refusal(node, have, version, f"it cannot be of type {dtype.name} there")

"""Another opset of ai.onnx for a model: each node whose operator changed in between is converted alone.

onnx's converter takes whole models: it loses functions, metadata and symbolic shapes on the way, does not look into
subgraphs, and copies all weights several times. Here it gets one small model of loose nodes, each distinct one once,
with typed inputs instead of weights, in a process of its own; its answers are put in the nodes' places. So subgraphs
and functions are converted too, and everything else stays the very object that it was. What it cannot do is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.graph.onnx_ir_internals import use_count
from ortopt.opset_conversion.child import ANSWER, REQUEST
from ortopt.semantics import constant_tensor
from ortopt.system import child_processes

_SMALL: Final = 1024
"""Constants of at most so many bytes are shown to the converter: axes, shapes, scales."""

_SECONDS: Final = 120.0
_MODULE = "ortopt.opset_conversion.child"
_COORDINATES_SINCE: Final = 11
_NEGATIVE_AXES_SINCE: Final = 11
"""Below, an operator that reads the same may take fewer values: the converter decides."""
_OWN_NAME: Final = re.compile(r"(\d+)\.i(\d+)")


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
        _apply(model, _converted(changed, version, token), token)
    for _, imports in bodies:
        imports[""] = version
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", version)], ignore_unknown=True)
    model.ir_version = max(model.ir_version, needed) if bodies else model.ir_version
    return model


def _refuse(node: ir.Node, have: int, version: int, reason: str) -> UsageError:
    label = f"{node.op_type} ({node.name!r})" if node.name else node.op_type
    return UsageError(f"opset {have} cannot become opset {version}: {label}: {' '.join(reason.split())[:400]}")


# -- which nodes ------------------------------------------------------------------------------------------------------


@functools.lru_cache(1 << 12)
def _schema(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version)
    except onnx.defs.SchemaError:
        return None


@functools.lru_cache(1 << 12)
def _signature(op_type: str, version: int) -> tuple[object, ...]:
    """What a schema says of inputs, outputs and attributes, their types apart."""
    schema = _schema(op_type, version)
    assert schema is not None
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
            old, new = _schema(node.op_type, have), _schema(node.op_type, version)
            if old is None or new is None:
                raise _refuse(
                    node, have, version, f"ai.onnx does not have it at opset {have if old is None else version}"
                )
            if old.since_version == new.since_version:
                continue
            if node.op_type == "Constant":
                _check_constant(node, new, have, version)
            elif any(attribute.is_ref() for attribute in node.attributes.values()):
                if not _alike(node.op_type, have, version):
                    raise _refuse(node, have, version, "it has an attribute of the function, and its operator changed")
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
    schema = onnx.defs.get_schema(node.op_type, version)
    constraints = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for i, value in enumerate(values):
            formal = formals[min(i, len(formals) - 1)]
            allowed = constraints.get(formal.type_str, [formal.type_str])
            if value is None or not value.name or _spelled(value.type) in allowed:
                continue
            what = "a type that is not known" if value.type is None else f"the type {value.type}"
            raise _refuse(node, have, version, f"it has {what}, and fewer are allowed there")


def _check_constant(node: ir.Node, schema: onnx.defs.OpSchema, have: int, version: int) -> None:
    """A Constant is what it was, weights and all, unless the new version cannot say it."""
    for name, attribute in node.attributes.items():
        if name not in schema.attributes:
            raise _refuse(node, have, version, f"it has no attribute {name!r} there")
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            dtype = attribute.as_tensor().dtype
            if _spelled(ir.TensorType(dtype)) not in schema.type_constraints[0].allowed_type_strs:
                raise _refuse(node, have, version, f"it cannot be of type {dtype.name} there")


def _spelled(kind: ir.TypeProtocol | None) -> str:
    """A type as schemas spell it."""
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        name = "seq" if isinstance(kind, ir.SequenceType) else "optional"
        return f"{name}({_spelled(kind.elem_type)})"
    return f"tensor({kind.dtype.name.lower()})" if isinstance(kind, ir.TensorType) else ""


# -- what the converter is shown --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Case:
    """Nodes that are alike to the converter.

    Attributes:
        nodes: All of them; the first one stands for them.
        number: What the names of its values begin with.
        node: As the converter sees it; names without the number.
        inputs: Its inputs of unknown contents.
        constants: Its small constant inputs.
        answer: What takes the place of each, in order.
        added: Constants that came with the answer.
    """

    nodes: list[ir.Node]
    number: int
    node: onnx.NodeProto
    inputs: list[onnx.ValueInfoProto]
    constants: list[onnx.TensorProto]
    answer: list[onnx.NodeProto] = field(default_factory=list)
    added: list[onnx.TensorProto] = field(default_factory=list)


def _converted(changed: Mapping[ir.Node, int], version: int, token: CancellationToken) -> list[_Case]:
    cases: dict[tuple[int, bytes], _Case] = {}
    for node, have in token.checked(changed.items()):
        case = _shown(node, have, version)
        key = have, _model([case], have)
        known = cases.setdefault(key, case)
        if known is case:
            known.number = len(cases)
        else:
            known.nodes.append(node)
    for have in dict.fromkeys(changed.values()):
        _ask([case for (own, _), case in cases.items() if own == have], have, version, token)
    return list(cases.values())


def _shown(node: ir.Node, have: int, version: int) -> _Case:
    case = _Case([node], 0, onnx.NodeProto(op_type=node.op_type), [], [])
    for i, value in enumerate(node.inputs):
        case.node.input.append("" if value is None else f"i{i}")
        if value is None:
            continue
        tensor = constant_tensor(value)
        if tensor is not None and tensor.nbytes <= _SMALL and tensor.dtype != ir.DataType.STRING:
            data = onnx.TensorProto(name=f"i{i}", data_type=tensor.dtype.value, dims=tensor.shape.numpy())
            data.raw_data = tensor.tobytes()
            case.constants.append(data)
        else:
            case.inputs.append(_typed(f"i{i}", value))
    case.node.output.extend(f"o{i}" if value.name else "" for i, value in enumerate(node.outputs))
    for attribute in node.attributes.values():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            graphs = [onnx.GraphProto(name="body")] * (1 if attribute.type == ir.AttributeType.GRAPH else 2)
            stub = onnx.helper.make_attribute(attribute.name, graphs[0] if len(graphs) == 1 else graphs)
            case.node.attribute.append(stub)
            continue
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().nbytes > _SMALL:
            raise _refuse(node, have, version, f"its attribute {attribute.name!r} is too large to be converted")
        case.node.attribute.append(ir.serde.serialize_attribute(attribute))
    return case


def _typed(name: str, value: ir.Value) -> onnx.ValueInfoProto:
    """A graph input of a value's type; of none if it is no tensor, for adapters do not look at others."""
    info = onnx.ValueInfoProto(name=name)
    if not isinstance(value.type, ir.TensorType) or value.dtype is None:
        return info
    info.type.tensor_type.elem_type = value.dtype.value
    if value.shape is not None:
        info.type.tensor_type.shape.SetInParent()
        for dim in value.shape:
            entry = info.type.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
            elif dim.value is not None:
                entry.dim_param = dim.value
    return info


def _model(cases: Iterable[_Case], have: int) -> bytes:
    """A model of loose nodes; names get their case's number."""
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION)
    model.opset_import.add(version=have)
    graph = model.graph
    graph.name = "nodes"
    for case in cases:
        node = graph.node.add()
        node.CopyFrom(case.node)
        del node.input[:]
        node.input.extend(name and f"{case.number}.{name}" for name in case.node.input)
        del node.output[:]
        node.output.extend(name and f"{case.number}.{name}" for name in case.node.output)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
        for mine, theirs in ((case.inputs, graph.input), (case.constants, graph.initializer)):
            for item in mine:
                copy = theirs.add()
                copy.CopyFrom(item)
                copy.name = f"{case.number}.{item.name}"
    data: bytes = model.SerializeToString(deterministic=True)
    return data


# -- asking it --------------------------------------------------------------------------------------------------------


def _ask(cases: Sequence[_Case], have: int, version: int, token: CancellationToken) -> None:
    """Convert all at once; where that fails, by operator, to name the one that fails."""
    answers = _run([_model(token.checked(cases), have)], version, token)
    if isinstance(answers[0], bytes):
        _split(cases, answers[0], have, version, token)
        return
    by_op: dict[str, list[_Case]] = {}
    for case in cases:
        by_op.setdefault(case.node.op_type, []).append(case)
    groups = list(by_op.values())
    requests = [_model(token.checked(group), have) for group in groups]
    for group, answer in zip(groups, _run(requests, version, token), strict=False):
        if isinstance(answer, str):
            raise _refuse(group[0].nodes[0], have, version, f"onnx's converter: {answer}")
        _split(group, answer, have, version, token)


def _run(models: Sequence[bytes], version: int, token: CancellationToken) -> list[bytes | str]:
    """The converted models, or what went wrong; none beyond the model that ended the process."""
    request = b"".join(REQUEST.pack(version, len(model)) + model for model in models)
    answer, status = child_processes.run(_MODULE, request=request, seconds=_SECONDS, token=token)
    answers = _answers(answer)
    if len(answers) == len(models):
        return answers
    if status is None:
        return [*answers, f"it took longer than {_SECONDS:g} seconds"]
    return [*answers, f"it ended its process with status {status}"]


def _answers(data: bytes) -> list[bytes | str]:
    """The converted models, and what went wrong as text."""
    answers: list[bytes | str] = []
    while len(data) >= ANSWER.size:
        good, length = ANSWER.unpack_from(data)
        answer, data = data[ANSWER.size : ANSWER.size + length], data[ANSWER.size + length :]
        answers.append(answer if good else _short(answer.decode(errors="replace")))
    return answers


def _short(text: str) -> str:
    """An assertion's text without the place in onnx's sources."""
    return re.sub(r"^\S+\.(?:cc|h):\d+: \w+: ", "", " ".join(text.split()))


def _split(cases: Sequence[_Case], answer: bytes, have: int, version: int, token: CancellationToken) -> None:
    """Give each case its part of the answer."""
    graph = onnx.ModelProto.FromString(answer).graph
    producers = {name: i for i, node in enumerate(token.checked(graph.node)) for name in node.output if name}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for case in token.checked(cases):
        first = case.nodes[0]
        outputs = [name and f"{case.number}.{name}" for name in case.node.output]
        last = {producers.get(name) for name in outputs if name}
        if len(last) != 1 or None in last:
            raise _refuse(first, have, version, "onnx's converter does not give its results by one node")
        part: set[int] = set()
        pending = [position for position in last if position is not None]
        used: dict[str, None] = {}
        while pending:
            position = pending.pop()
            if position not in part:
                part.add(position)
                used.update(dict.fromkeys(graph.node[position].input))
                pending.extend(producers[name] for name in graph.node[position].input if name in producers)
        case.answer = [graph.node[position] for position in sorted(part)]
        case.added = [constants[name] for name in used if name in constants and not _OWN_NAME.fullmatch(name)]
        if list(case.answer[-1].output)[: len(outputs)] != outputs:
            raise _refuse(first, have, version, "onnx's converter changes the order of its outputs")
        if reason := _mend(case, have, version):
            raise _refuse(first, have, version, reason)


def _mend(case: _Case, have: int, version: int) -> str:
    """Say what onnx's converter forgets; or why it cannot be said.

    Before opset 11, Resize divided coordinates by the scale; for ``nearest`` it rounded down where it enlarges and up
    where it shrinks. Before opset 21, GroupNormalization had a scale and a bias for each group.
    """
    resize = case.answer[-1]
    if case.node.op_type == "GroupNormalization" and len(case.answer) == 1:
        return "its scale and bias are per group before opset 21 and per channel since, and onnx's converter keeps them"
    if resize.op_type != "Resize" or have >= _COORDINATES_SINCE or version < _COORDINATES_SINCE:
        return ""
    old = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in case.node.attribute}
    resize.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    if old.get("mode", b"nearest") != b"nearest":
        return ""
    constants = [onnx.numpy_helper.to_array(tensor) for tensor in case.constants if tensor.name == "i1"]
    scales = np.asarray(old["scales"]) if "scales" in old else (constants[0] if constants else None)
    if scales is None or ((scales < 1).any() and (scales > 1).any()):
        return "whether it enlarges or shrinks is not known, and since opset 11 it must say how it rounds"
    resize.attribute.append(onnx.helper.make_attribute("nearest_mode", "ceil" if (scales < 1).any() else "floor"))
    return ""


# -- putting it in place ----------------------------------------------------------------------------------------------


def _apply(model: ir.Model, cases: Iterable[_Case], token: CancellationToken) -> None:
    names = _Names(model, token)
    for case in cases:
        for node in token.checked(case.nodes):
            _replace(node, case, names)


class _Names:
    """Names that are not used yet."""

    def __init__(self, model: ir.Model, token: CancellationToken) -> None:
        self._taken: set[str | None] = set()
        for graph in scope.graphs(model, token):
            self._taken.update(value.name for value in token.checked((*graph.inputs, *graph.initializers.values())))
            for node in token.checked(graph):
                self._taken.add(node.name)
                self._taken.update(value.name for value in node.outputs)

    def like(self, name: str | None) -> str:
        """A new name that begins with another."""
        stem = name or "converted"
        number = 0
        while (new := f"{stem}_opset{number}") in self._taken:
            number += 1
        self._taken.add(new)
        return new


def _replace(node: ir.Node, case: _Case, names: _Names) -> None:
    """Make a node what the answer's last node is, with the answer's other nodes before it; its outputs stay."""
    values: dict[str, ir.Value | None] = {"": None}
    for i, value in enumerate(node.inputs):
        values[f"{case.number}.i{i}"] = value
    before = list(dict.fromkeys(value for value in node.inputs if value is not None))
    graph = scope.graph_of(node)
    stem = node.name or node.outputs[0].name

    def insert(op_type: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr], outputs: int) -> ir.Node:
        new = ir.Node(
            "", op_type, inputs, attributes, num_outputs=outputs, name=names.like(stem),
            metadata_props=dict(node.metadata_props),
        )  # fmt: skip
        for value in new.outputs:
            value.name = names.like(node.outputs[0].name)
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


__all__ = ["convert"]

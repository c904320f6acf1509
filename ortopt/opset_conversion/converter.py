"""onnx's converter, asked about single nodes: what it is shown, what it answers, what is mended in the answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.errors import UsageError
from ortopt.opset_conversion.child import ANSWER, REQUEST
from ortopt.semantics import constant_tensor
from ortopt.system import child_processes

_SMALL: Final = 1024
"""Constants of at most so many bytes are shown to the converter: axes, shapes, scales."""

_SECONDS: Final = 120.0
_MODULE: Final = "ortopt.opset_conversion.child"
_COORDINATES_SINCE: Final = 11
_OWN_NAME: Final = re.compile(r"(\d+)\.i(\d+)")


def refusal(node: ir.Node, have: int, version: int, reason: str) -> UsageError:
    """The error that says why a node cannot be converted."""
    label = f"{node.op_type} ({node.name!r})" if node.name else node.op_type
    return UsageError(f"opset {have} cannot become opset {version}: {label}: {' '.join(reason.split())[:400]}")


@dataclass(slots=True)
class Case:
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


def converted_cases(changed: Mapping[ir.Node, int], version: int, token: CancellationToken) -> list[Case]:
    """What onnx's converter makes of nodes, each distinct node once.

    Args:
        changed: The nodes, and the opset of each.
        version: The opset version that they are converted to.
        token: Cancellation token.

    Raises:
        UsageError: A node cannot be converted.
        OptimizationCancelled: If the token was set.
    """
    cases: dict[tuple[int, bytes], Case] = {}
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


def _shown(node: ir.Node, have: int, version: int) -> Case:
    case = Case([node], 0, onnx.NodeProto(op_type=node.op_type), [], [])
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
            raise refusal(node, have, version, f"its attribute {attribute.name!r} is too large to be converted")
        case.node.attribute.append(ir.serde.serialize_attribute(attribute))
    return case


def _typed(name: str, value: ir.Value) -> onnx.ValueInfoProto:
    """A graph input of a value's type; of none if it is no tensor, for adapters do not look at others."""
    info = onnx.ValueInfoProto(name=name)
    if isinstance(value.type, ir.TensorType):
        ir.serde.serialize_type_into(info.type, value.type)
        if value.shape is not None:
            ir.serde.serialize_shape_into(info.type, value.shape)
    return info


def _model(cases: Iterable[Case], have: int) -> bytes:
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


def _ask(cases: Sequence[Case], have: int, version: int, token: CancellationToken) -> None:
    """Convert all at once; where that fails, by operator, to name the one that fails."""
    answers = _run([_model(token.checked(cases), have)], version, token)
    if isinstance(answers[0], bytes):
        _split(cases, answers[0], have, version, token)
        return
    by_op: dict[str, list[Case]] = {}
    for case in cases:
        by_op.setdefault(case.node.op_type, []).append(case)
    groups = list(by_op.values())
    requests = [_model(token.checked(group), have) for group in groups]
    for group, answer in zip(groups, _run(requests, version, token), strict=False):
        if isinstance(answer, str):
            raise refusal(group[0].nodes[0], have, version, f"onnx's converter: {answer}")
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


def _split(cases: Sequence[Case], answer: bytes, have: int, version: int, token: CancellationToken) -> None:
    """Give each case its part of the answer."""
    graph = onnx.ModelProto.FromString(answer).graph
    producers = {name: i for i, node in enumerate(token.checked(graph.node)) for name in node.output if name}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for case in token.checked(cases):
        first = case.nodes[0]
        outputs = [name and f"{case.number}.{name}" for name in case.node.output]
        last = {producers.get(name) for name in outputs if name}
        if len(last) != 1 or None in last:
            raise refusal(first, have, version, "onnx's converter does not give its results by one node")
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
            raise refusal(first, have, version, "onnx's converter changes the order of its outputs")
        if reason := _mend(case, have, version):
            raise refusal(first, have, version, reason)


def _mend(case: Case, have: int, version: int) -> str:
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

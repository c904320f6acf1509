"""Changes of where nodes stand: values read from within a branch or a loop, nodes in functions, all nodes twice."""

from __future__ import annotations

import copy
from typing import Final

from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from fuzzing.mutants.draft import Draft
from fuzzing.writer import Unsuitable

_DOMAIN: Final = "moved"
_NEARBY: Final = (-4, -1, 1, 2)
"""How far the opset of a function may be from the model's."""

_MAX_NODES: Final = 40


def captured(draft: Draft) -> None:
    """A branch reads a value of the main graph, and its result is an output."""
    at = draft.draw.randrange(len(draft.graph.node)) + 1
    name = draft.one(draft.before(at))
    condition = draft.constant(draft.draw.random() < 0.5, bool)
    if draft.draw.random() < 0.7:
        draft.graph.input.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, []))
    made = helper.make_node("If", [condition], [draft.name()])
    for which, op in (("then_branch", "Identity"), ("else_branch", draft.draw.choice(("Identity", "Neg", "Abs")))):
        inner = helper.make_node(op, [name], [draft.name()])
        result = ValueInfoProto(name=inner.output[0])
        made.attribute.append(helper.make_attribute(which, helper.make_graph([inner], which, [], [result])))
    draft.graph.node.insert(at, made)
    draft.give(made.output[0])


def moved(draft: Draft) -> None:
    """Some nodes in a row stand in a function, perhaps of another opset, which the model calls."""
    graph = draft.graph
    start = draft.draw.randrange(len(graph.node))
    nodes = list(graph.node[start : start + draft.draw.choice((1, 2, 3, _MAX_NODES))])
    if any(one.HasField("g") or one.ref_attr_name for node in nodes for one in node.attribute):
        raise Unsuitable
    inside = [name for node in nodes for name in node.output if name]
    read = list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in inside))
    needed = {name for node in graph.node if node not in nodes for name in node.input}
    needed |= {one.name for one in graph.output}
    given = [name for name in inside if name in needed]
    if not given or any(one.name == _DOMAIN for one in draft.model.functions):
        raise Unsuitable
    imports = [copy.deepcopy(one) for one in draft.model.opset_import]
    if draft.draw.random() < 0.5:
        for one in imports:
            one.version += draft.draw.choice(_NEARBY) if one.domain in ("", "ai.onnx") else 0
    draft.model.functions.append(helper.make_function(_DOMAIN, _DOMAIN, read, given, nodes, imports))
    if all(one.domain != _DOMAIN for one in draft.model.opset_import):
        draft.model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    del graph.node[start : start + len(nodes)]
    graph.node.insert(start, helper.make_node(_DOMAIN, read, given, domain=_DOMAIN))


def looped(draft: Draft) -> None:
    """A node stands in a loop, which runs once or not at all, and collects its results."""
    graph = draft.graph
    at = draft.draw.randrange(len(graph.node))
    node = graph.node[at]
    if len(node.output) != 1 or any(one.HasField("g") or one.ref_attr_name for one in node.attribute):
        raise Unsuitable
    if any(one.name == node.output[0] for one in graph.output):
        raise Unsuitable
    turns, going, axes = draft.constant(1), draft.constant(True, bool), draft.constant([0])
    if draft.draw.random() < 0.5:
        graph.input.append(helper.make_tensor_value_info(turns, TensorProto.INT64, []))
    inner = copy.deepcopy(node)
    inner.output[0] = draft.name()
    number, held, on = draft.name(), draft.name(), draft.name()
    body = helper.make_graph(
        [inner, helper.make_node("Identity", [held], [on])],
        "body",
        [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(held, TensorProto.BOOL, []),
        ],
        [ValueInfoProto(name=on), ValueInfoProto(name=inner.output[0])],
    )
    body.output[0].CopyFrom(helper.make_tensor_value_info(on, TensorProto.BOOL, []))
    all_of_them = draft.name()
    loop = helper.make_node("Loop", [turns, going], [all_of_them], body=body)
    old_squeeze = draft.opset < 13
    squeeze = (
        helper.make_node("Squeeze", [all_of_them], list(node.output), axes=[0])
        if old_squeeze
        else helper.make_node("Squeeze", [all_of_them, axes], list(node.output))
    )
    graph.node[at].CopyFrom(loop)
    graph.node.insert(at + 1, squeeze)


def doubled(draft: Draft) -> None:
    """All nodes stand twice, and read the same inputs and constants; the results of both are outputs."""
    graph = draft.graph
    if len(graph.node) > _MAX_NODES or any(one.HasField("g") for node in graph.node for one in node.attribute):
        raise Unsuitable
    names = {name: draft.name() for node in graph.node for name in node.output if name}
    twins: list[NodeProto] = []
    for node in graph.node:
        twin = copy.deepcopy(node)
        twin.name = f"{node.name}_twin" if node.name else ""
        twin.input[:] = [names.get(name, name) for name in node.input]
        twin.output[:] = [names.get(name, name) for name in node.output]
        twins.append(twin)
    told = [one.name for one in graph.output if one.name in names]
    if draft.draw.random() < 0.5:
        mixed = [node for pair in zip(graph.node, twins, strict=True) for node in map(copy.deepcopy, pair)]
        del graph.node[:]
        graph.node.extend(mixed)
    else:
        graph.node.extend(twins)
    for name in told:
        draft.give(names[name])

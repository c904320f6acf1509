"""What models may look like and seldom do: changes that keep a model's meaning, or only add outputs to it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from fuzzing.protos import reads

Oddity = Callable[[ModelProto, random.Random], bool]
DOMAIN: Final = "mine"
"""Of the ops that the caller of a session brings."""
MARK: Final = "marked"
"""The prefix of the names of nodes that shall become ops of the caller's: Identity."""

_MAX_NODES: Final = 6
_oddities: list[Oddity] = []


def odd(function: Oddity) -> Oddity:
    """Register an oddity."""
    _oddities.append(function)
    return function


def add_oddities(model: ModelProto, draw: random.Random) -> list[str]:
    """Change a model, in place, in some of the ways; their names."""
    chosen = [one for one in _oddities if draw.random() < 0.4]
    draw.shuffle(chosen)
    return [one.__name__.removeprefix("_") for one in chosen if one(model, draw)]


def with_ops_of_the_callers(model: ModelProto) -> ModelProto | None:
    """The model with ``mine.Same`` for the marked nodes; None where there are none."""
    twin = copy.deepcopy(model)
    marked = [node for graph in _graphs(twin) for node in graph.node if node.name.startswith(MARK)]
    for node in marked:
        node.op_type, node.domain = "Same", DOMAIN
    if not marked:
        return None
    twin.opset_import.add(domain=DOMAIN, version=1)
    return twin


def _graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph and those below it."""
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        yield graph
        pending.extend(attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))


def _types(model: ModelProto) -> dict[str, ValueInfoProto]:
    """Declarations of the values of the main graph: names and element types."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model).graph
    except Exception:
        return {}
    found = {}
    for one in (*inferred.input, *inferred.value_info, *inferred.output):
        if one.type.HasField("tensor_type") and one.type.tensor_type.elem_type:
            found[one.name] = helper.make_tensor_value_info(one.name, one.type.tensor_type.elem_type, None)
    for tensor in inferred.initializer:
        found[tensor.name] = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    return found


def _fresh(model: ModelProto, prefix: str) -> str:
    taken = {name for graph in _graphs(model) for node in graph.node for name in node.output}
    taken |= {one.name for graph in _graphs(model) for one in (*graph.input, *graph.initializer)}
    count = 0
    while f"{prefix}{count}" in taken:
        count += 1
    return f"{prefix}{count}"


@odd
def _an_initializer_as_output(model: ModelProto, draw: random.Random) -> bool:
    graph = model.graph
    taken = {one.name for one in (*graph.output, *graph.input)}
    free = [one for one in graph.initializer if one.name not in taken]
    if not free:
        return False
    one = draw.choice(free)
    graph.output.append(helper.make_tensor_value_info(one.name, one.data_type, list(one.dims)))
    return True


@odd
def _an_input_as_output(model: ModelProto, draw: random.Random) -> bool:
    graph = model.graph
    taken = {one.name for one in graph.output}
    free = [one for one in graph.input if one.name not in taken]
    if not free:
        return False
    graph.output.append(copy.deepcopy(draw.choice(free)))
    return True


@odd
def _inner_values_as_outputs(model: ModelProto, draw: random.Random) -> bool:
    graph, types = model.graph, _types(model)
    taken = {one.name for one in graph.output}
    free = [name for node in graph.node for name in node.output if name in types and name not in taken]
    for name in draw.sample(free, min(len(free), draw.choice((1, 2, 4)))):
        graph.output.append(types[name])
    return bool(free)


@odd
def _outputs_in_another_order(model: ModelProto, draw: random.Random) -> bool:
    outputs = [copy.deepcopy(one) for one in model.graph.output]
    draw.shuffle(outputs)
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return True


@odd
def _marked_identities(model: ModelProto, draw: random.Random) -> bool:
    """Identities in the middle, which ops of the caller's may replace."""
    graph, types = model.graph, _types(model)
    there = [(i, name) for i, node in enumerate(graph.node) for name in node.output if name in types]
    chosen = draw.sample(there, min(len(there), draw.choice((1, 2, 3))))
    for i, name in sorted(chosen, reverse=True):
        inner = _fresh(model, "before_mark")
        node = graph.node[i]
        node.output[list(node.output).index(name)] = inner
        made = helper.make_node("Identity", [inner], [name], name=_fresh_node(graph))
        graph.node.insert(i + 1, made)
    return bool(chosen)


def _fresh_node(graph: GraphProto) -> str:
    taken = {node.name for node in graph.node}
    count = 0
    while f"{MARK}{count}" in taken:
        count += 1
    return f"{MARK}{count}"


def _stretch(model: ModelProto, draw: random.Random) -> tuple[int, int] | None:
    count = len(model.graph.node)
    if count < 2:
        return None
    start = draw.randrange(count)
    return start, min(count, start + draw.randint(1, _MAX_NODES))


def _outer_uses(model: ModelProto, start: int, end: int) -> tuple[list[str], list[str]]:
    """What a stretch of nodes reads from outside, and what of it the outside reads."""
    graph = model.graph
    nodes = list(graph.node)[start:end]
    made = [name for node in nodes for name in node.output if name]
    taken = [name for name in reads(nodes) if name and name not in made]
    rest = [*list(graph.node)[:start], *list(graph.node)[end:]]
    wanted = set(reads(rest)) | {one.name for one in graph.output}
    return list(dict.fromkeys(taken)), [name for name in made if name in wanted]


@odd
def _a_branch_around_nodes(model: ModelProto, draw: random.Random) -> bool:
    """Some nodes move into both branches of an If, which capture what they read; names inside are used twice."""
    graph, types = model.graph, _types(model)
    stretch = _stretch(model, draw)
    if stretch is None:
        return False
    start, end = stretch
    _, given = _outer_uses(model, start, end)
    if not given or any(name not in types for name in given):
        return False
    nodes = [copy.deepcopy(node) for node in list(graph.node)[start:end]]
    fresh = {name: f"{name}_inside" for name in given}
    _rename(nodes, fresh)
    branches = [
        helper.make_graph(copy.deepcopy(nodes), f"branch{i}", [], [_typed(types[name], fresh[name]) for name in given])
        for i in range(2)
    ]
    condition = _fresh(model, "condition")
    if draw.random() < 0.5:
        graph.initializer.append(helper.make_tensor(condition, TensorProto.BOOL, [], [draw.random() < 0.5]))
        before = []
    else:
        sources = [name for name in types if name in {one.name for one in graph.input}]
        if not sources:
            return False
        size, zero = _fresh(model, "size"), _fresh(model, "zero")
        graph.initializer.append(helper.make_tensor(zero, TensorProto.INT64, [], [0]))
        before = [
            helper.make_node("Size", [draw.choice(sources)], [size]),
            helper.make_node("Greater", [size, zero], [condition]),
        ]
    made = helper.make_node("If", [condition], given, then_branch=branches[0], else_branch=branches[1])
    _replace(graph, start, end, [*before, made])
    return True


def _typed(info: ValueInfoProto, name: str) -> ValueInfoProto:
    found = ValueInfoProto()
    found.CopyFrom(info)
    found.name = name
    found.type.tensor_type.ClearField("shape")
    return found


def _rename(nodes: Sequence[NodeProto], names: dict[str, str]) -> None:
    pending = list(nodes)
    while pending:
        node = pending.pop()
        for field in (node.input, node.output):
            for i, name in enumerate(field):
                field[i] = names.get(name, name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                pending.extend(attribute.g.node)
                for one in attribute.g.output:
                    one.name = names.get(one.name, one.name)


def _replace(graph: GraphProto, start: int, end: int, nodes: Sequence[NodeProto]) -> None:
    kept = [*list(graph.node)[:start], *nodes, *list(graph.node)[end:]]
    kept = [copy.deepcopy(node) for node in kept]
    del graph.node[:]
    graph.node.extend(kept)


@odd
def _a_function_around_nodes(model: ModelProto, draw: random.Random) -> bool:
    stretch = _stretch(model, draw)
    if stretch is None:
        return False
    start, end = stretch
    taken, given = _outer_uses(model, start, end)
    if not given or any(node.op_type in ("If", "Loop", "Scan") for node in list(model.graph.node)[start:end]):
        return False
    name = f"Piece{len(model.functions)}"
    nodes = list(model.graph.node)[start:end]
    model.functions.append(
        helper.make_function("pieces", name, taken, given, copy.deepcopy(nodes), list(model.opset_import))
    )
    if not any(one.domain == "pieces" for one in model.opset_import):
        model.opset_import.add(domain="pieces", version=1)
    for function in model.functions:
        known = {one.domain for one in function.opset_import}
        function.opset_import.extend(one for one in model.opset_import if one.domain not in known)
    model.ir_version = max(model.ir_version, 8)
    _replace(model.graph, start, end, [helper.make_node(name, taken, given, domain="pieces")])
    return True


@odd
def _names_of_later_values_inside(model: ModelProto, draw: random.Random) -> bool:
    """A value in a subgraph is called as one that is made later around it."""
    graph = model.graph
    changed = False
    for i, node in enumerate(graph.node):
        later = [name for one in list(graph.node)[i + 1 :] for name in one.output if name]
        held = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        made = [name for one in held for inner in one.node for name in inner.output if name]
        if not later or not made or draw.random() < 0.4:
            continue
        name, other = draw.choice(made), draw.choice(later)
        used = {one for inner in held for one in reads(inner.node)}
        if other in used:
            continue
        _rename([node], {name: other})
        changed = True
    return changed


@odd
def _nodes_out_of_order_of_names(model: ModelProto, draw: random.Random) -> bool:
    """Nodes have no names, or all the same."""
    name = draw.choice(("", "same", "a/b c"))
    for node in model.graph.node:
        if not node.name.startswith(MARK):
            node.name = name
    return True


__all__ = ["DOMAIN", "add_oddities", "with_ops_of_the_callers"]

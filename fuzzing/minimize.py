"""A failing model made small: what is left is a test."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper

from fuzzing.oracle import run, session
from fuzzing.protos import graphs_of, kind_of, nodes_of, reads, watched
from fuzzing.writer import Array

Fails = Callable[[ModelProto, dict[str, Array]], bool]


def minimize(model: ModelProto, feeds: Mapping[str, Array], fails: Fails) -> tuple[ModelProto, dict[str, Array]]:
    """Take away what is not needed to fail.

    Args:
        model: A model that fails.
        feeds: Inputs with which it does.
        fails: Whether a model with these inputs still fails, in the same way.

    Returns:
        The smallest model that was found, and its inputs.
    """
    best, given = copy.deepcopy(model), dict(feeds)
    progress = True
    while progress:
        progress = False
        for candidate, inputs in _candidates(best, given):
            if fails(candidate, inputs):
                best, given, progress = candidate, inputs, True
                break
    return best, given


def _candidates(model: ModelProto, feeds: dict[str, Array]) -> Iterator[tuple[ModelProto, dict[str, Array]]]:
    """Smaller models, the smallest first."""
    if len(model.graph.output) > 1:
        for one in range(len(model.graph.output)):
            twin = copy.deepcopy(model)
            kept = twin.graph.output[one]
            del twin.graph.output[:]
            twin.graph.output.append(kept)
            yield _swept(twin, feeds)
        for one in range(len(model.graph.output)):
            twin = copy.deepcopy(model)
            del twin.graph.output[one]
            yield _swept(twin, feeds)
    swept, inputs = _swept(copy.deepcopy(model), feeds)
    if len(swept.graph.node) < len(model.graph.node) or len(swept.graph.input) < len(model.graph.input):
        yield swept, inputs
    if model.graph.value_info:
        twin = copy.deepcopy(model)
        del twin.graph.value_info[:]
        yield twin, feeds
    values = _values(model, feeds)
    for at in range(len(model.graph.node)):
        yield from _without(model, feeds, values, at)


def _without(
    model: ModelProto, feeds: dict[str, Array], values: Mapping[str, Any], at: int
) -> Iterator[tuple[ModelProto, dict[str, Array]]]:
    """Models without one node: with an input in its place, or what it reads."""
    node = model.graph.node[at]
    made = [name for name in node.output if name]
    if any(name in {one.name for one in model.graph.output} for name in made):
        return
    if node.op_type != "Constant" and all(isinstance(values.get(name), np.ndarray) for name in made):
        twin = copy.deepcopy(model)
        del twin.graph.node[at]
        for name in made:
            array = values[name]
            twin.graph.input.append(helper.make_tensor_value_info(name, kind_of(array), array.shape))
        yield _swept(twin, {**feeds, **{name: values[name] for name in made}})
    for name in dict.fromkeys(node.input):
        one, other = values.get(name), values.get(made[0]) if made else None
        if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and len(made) == 1:
            if one.dtype != other.dtype or one.shape != other.shape:
                continue
            twin = copy.deepcopy(model)
            del twin.graph.node[at]
            _rename(twin.graph, made[0], name)
            yield _swept(twin, feeds)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for each in graphs_of(graph):
        for node in each.node:
            for i, name in enumerate(node.input):
                if name == old:
                    node.input[i] = new


def _values(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Any]:
    """What the values of the main graph are, as far as it can be seen."""
    found: dict[str, Any] = dict(feeds)
    for tensor in model.graph.initializer:
        found.setdefault(tensor.name, onnx.numpy_helper.to_array(tensor))
    try:
        runs = session(watched(model).SerializeToString())
        found.update(zip((one.name for one in runs.get_outputs()), run(runs, feeds), strict=True))
    except Exception:  # sequences cannot always be outputs; then fewer ways are open
        return found
    return {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in found.items()}


def _swept(model: ModelProto, feeds: Mapping[str, Array]) -> tuple[ModelProto, dict[str, Array]]:
    """A model without what its outputs do not need."""
    graph = model.graph
    needed = {one.name for one in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.insert(0, node)
            needed.update(reads([node]))
    for field, items in (
        ("node", kept),
        ("initializer", [one for one in graph.initializer if one.name in needed]),
        ("input", [one for one in graph.input if one.name in needed]),
    ):
        copies = [copy.deepcopy(one) for one in items]
        del getattr(graph, field)[:]
        getattr(graph, field).extend(copies)
    called = {node.op_type for node in nodes_of(model)}
    functions = [copy.deepcopy(one) for one in model.functions if one.name in called]
    del model.functions[:]
    model.functions.extend(functions)
    names = {one.name for one in graph.input}
    return model, {name: array for name, array in feeds.items() if name in names}

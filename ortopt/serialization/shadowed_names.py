"""Shadowed names: a value in a nested graph has the name of a value in a graph around it.

ONNX allows it for values that are computed later around the nested graph, and for inputs of nested graphs. Both are
fine until a node moves: then one value shadows the other. So such values have names of their own while nodes move, and
get back the names that the file gives them when all nodes are in their places.

If, Loop, Scan and SequenceMap know the inputs and outputs of their graphs by position. Other ops may ask for names, as
BeamSearch of ONNX Runtime does: there the values around get other names.

While it loads a model, ONNX Runtime makes values, too, and the model may have their names. Where it makes a Gemm
between two Reshapes of a MatMul and an Add, it looks for free names of the two shapes among those of nodes, not of
values (1.31). So a model that it has saved itself, shapes and all, fails to load as soon as one more pair is there
to be fused: "Attempt to replace the existing tensor".
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.names import set_name
from ortopt.onnx_ir_internals import attributes_of, initializers_of
from ortopt.semantics import owns_interfaces, subgraphs
from ortopt.serialization.checks.structure import NameClashError, validate

_RENAMED: Final = "ortopt.renamed"
"""In the ``meta`` of a main graph, or a function's: what the file calls values below it, by their present names."""

_MAX_CLASHES: Final = 8
"""So many names are found to be taken, one after the other, before all keep their new ones."""


class _Level(Struct, frozen=True):
    """A graph in a walk through graphs.

    Attributes:
        graph: The graph.
        named: Whether the names of its inputs and outputs mean something to the node that holds it.
    """

    graph: ir.Graph
    named: bool


def separate(graph: ir.Graph, token: CancellationToken = NEVER) -> None:
    """Rename the values in nested graphs that are called as one in a graph around them.

    Args:
        graph: The main graph, or a function's; the names of its inputs and outputs stay.
        token: Cancellation token.

    Raises:
        OptimizationCancelled: If the token was set.
    """
    graph.meta.pop(_RENAMED, None)
    graphs = list(scope.below(graph, token))
    if len(graphs) == 1:
        return
    taken = {value.name for current in graphs for value in token.checked(_values(current))}
    numbers: Counter[str] = Counter()
    around: Counter[str | None] = Counter()
    renamed: dict[str, str] = {}

    def rename(value: ir.Value) -> None:
        before = value.name or ""
        _rename(value, taken, numbers)
        renamed[value.name or ""] = before

    asked = _names_asked_for(graphs, token)
    if asked:
        for current in graphs:
            for value in token.checked(dict.fromkeys(token.checked(_values(current)))):
                if value.name in asked and not (value.is_graph_input() or value.is_graph_output()):
                    rename(value)
    stack = [_nested(_Level(graph, True), around, token)]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
            continue
        stays = {*inner.graph.inputs, *inner.graph.outputs} if inner.named else frozenset()
        for value in token.checked(dict.fromkeys(token.checked(_values(inner.graph)))):
            if value.name and around[value.name] and value not in stays:
                rename(value)
        stack.append(_nested(inner, around, token))
    if renamed:
        graph.meta[_RENAMED] = renamed


def restore(model: ir.Model, token: CancellationToken = NEVER) -> None:
    """Give values in nested graphs the names back that `separate` took from them, as far as ONNX allows it by now.

    Args:
        model: A model that is not edited any more.
        token: Cancellation token; a model that is stopped here is valid, with some names restored.
    """
    changed: dict[ir.Value, str] = {}
    for top in (model.graph, *(function.graph for function in model.functions.values())):
        renamed: dict[str, str] | None = top.meta.get(_RENAMED)
        if renamed:
            for graph in scope.below(top, token):
                for value in dict.fromkeys(token.checked(_values(graph))):
                    name = value.name or ""
                    free = renamed.get(name) not in graph.initializers  # a dictionary by name
                    if name in renamed and free and not (graph is top and value.is_graph_output()):
                        changed[value] = name
                        set_name(value, renamed[name])
    for remaining in range(_MAX_CLASHES, -1, -1):
        if not changed:
            return
        try:
            validate(model, token=token)
        except NameClashError as clash:
            back = [value for value in changed if value.name == clash.name]
            for value in back if back and remaining else tuple(changed):
                set_name(value, changed.pop(value))
        else:
            return


def _names_asked_for(graphs: list[ir.Graph], token: CancellationToken) -> set[str | None]:
    """The names of inputs and outputs of graphs below nodes that may ask for names."""
    return {
        value.name
        for graph in graphs
        for node in token.checked(graph)
        if attributes_of(node) and not owns_interfaces(node)
        for held in subgraphs(node)
        for value in itertools.chain(held.inputs, held.outputs)
    }


def _nested(level: _Level, around: Counter[str | None], token: CancellationToken) -> Iterator[_Level]:
    """The graphs right below a graph, while its names count as those around."""
    names = [value.name for value in dict.fromkeys(token.checked(_values(level.graph)))]
    around.update(names)
    for node in token.checked(level.graph):
        if attributes_of(node):
            for graph in subgraphs(node):
                yield _Level(graph, not owns_interfaces(node))
    around.subtract(names)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from initializers_of(graph).values()
    for node in graph:
        yield from node.outputs


def _rename(value: ir.Value, taken: set[str | None], numbers: Counter[str]) -> None:
    base = name = value.name or ""
    while name in taken:
        numbers[base] += 1
        name = f"{base}_{numbers[base] + 1}"
    taken.add(name)
    set_name(value, name)


_TAKEN_UNASKED: Final = re.compile(r"gemm_(input|output)_shape(_token_\d+)?")


def avoid_load_time_names(model: ir.Model, token: CancellationToken = NEVER) -> None:
    """Rename values whose names ONNX Runtime takes while it loads a model; inputs and outputs of graphs keep theirs.

    Args:
        model: A model that is not edited any more.
        token: Cancellation token; a model that is stopped here is valid, with some names left.
    """
    for top in (model.graph, *(function.graph for function in model.functions.values())):
        graphs = list(scope.below(top, token))
        clashing = [
            value
            for graph in graphs
            for value in token.checked(_inner_values(graph))
            if value.name is not None and _TAKEN_UNASKED.fullmatch(value.name)
        ]
        if not clashing:
            continue
        names = {
            value.name
            for graph in graphs
            for value in token.checked(itertools.chain(graph.inputs, graph.initializers.values(), _results(graph)))
        }
        for value in clashing:
            name = next(free for number in itertools.count(1) if (free := f"{value.name}_{number}") not in names)
            names.add(name)
            set_name(value, name)


def _inner_values(graph: ir.Graph) -> Iterator[ir.Value]:
    for value in itertools.chain(tuple(initializers_of(graph).values()), _results(graph)):
        if not (value.is_graph_input() or value.is_graph_output()):
            yield value


def _results(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph:
        yield from node.outputs

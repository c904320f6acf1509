"""Names of values: how one is renamed, and those in nested graphs that values around them have too.

ONNX lets a value in a subgraph be called as one that is computed later around it, and an input of a subgraph as any
around it. Both are fine until a node moves: then one hides the other.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.semantics import subgraphs


def separate(graph: ir.Graph, token: CancellationToken = NEVER) -> None:
    """Rename the values in nested graphs that are called as one in a graph around them.

    Args:
        graph: The main graph, or a function's; its own names stay.
        token: Who may stop it.

    Raises:
        OptimizationCancelled: If the token was set.
    """
    graphs = list(scope.below(graph, token))
    if len(graphs) == 1:
        return
    taken = {value.name for one in graphs for value in token.watch(_values(one))}
    numbers: Counter[str] = Counter()
    around: Counter[str | None] = Counter()
    stack = [_nested(graph, around, token)]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
            continue
        for value in token.watch(dict.fromkeys(token.watch(_values(inner)))):
            if value.name and around[value.name]:
                _rename(value, taken, numbers)
        stack.append(_nested(inner, around, token))


def _nested(graph: ir.Graph, around: Counter[str | None], token: CancellationToken) -> Iterator[ir.Graph]:
    """The graphs right below a graph, while its names count as those around."""
    names = [value.name for value in dict.fromkeys(token.watch(_values(graph)))]
    around.update(names)
    for node in token.watch(graph):
        if node.attributes.data:
            yield from subgraphs(node)
    around.subtract(names)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.data.values()
    for node in graph:
        yield from node.outputs


def _rename(value: ir.Value, taken: set[str | None], numbers: Counter[str]) -> None:
    base = name = value.name or ""
    while name in taken:
        numbers[base] += 1
        name = f"{base}_{numbers[base] + 1}"
    taken.add(name)
    set_name(value, name)


def set_name(value: ir.Value, name: str | None) -> None:
    """Rename a value, and with an initializer what it is written from.

    onnx-ir renames the tensor, too. But that may be shared, with the model of the caller for one: an initializer gets
    one of its own, and that of a Constant node keeps its name.
    """
    tensor = value.const_value
    if tensor is None or tensor.name == name:
        value.name = name
        return
    value.const_value = None
    value.name = name
    if value.producer() is None:
        tensor = _copied(tensor)
        tensor.name = name
    value.const_value = tensor


def _copied(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor with a name of its own, and the same content."""
    if isinstance(tensor, ir.serde.TensorProtoTensor):  # whose name is that of what it wraps
        return ir.serde.TensorProtoTensor(copy.deepcopy(tensor.raw))
    return copy.copy(tensor)


__all__ = ["separate", "set_name"]

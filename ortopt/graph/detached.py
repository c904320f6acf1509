"""Constants and nodes that are in no graph: new ones for an edit, and those that an abandoned edit leaves behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.onnx_ir_internals import replace_input


def constant(
    content: ir.TensorProtocol | np.ndarray | Sequence[int] | Sequence[float] | int | float,
    dtype: ir.DataType | None = None,
) -> ir.Value:
    """A new constant, for use as an input of new nodes.

    The editor makes it an initializer where the graph may have them, a Constant node elsewhere (in functions, and
    before IR version 4, when an initializer had to be an input).

    Args:
        content: A tensor, or numbers; Python ints become int64, floats float32 unless `dtype` says otherwise.
        dtype: The element type, for numbers.

    Returns:
        A value that is in no graph yet.
    """
    # Numbers are asked for first: whether something is a TensorProtocol costs 0.2 ms the first time, 20 µs later.
    numbers = isinstance(content, np.ndarray | np.generic | int | float | Sequence)
    tensor: Any = _tensor(content, dtype) if numbers else content
    value = ir.Value(name=None, const_value=tensor)
    value.dtype = tensor.dtype
    value.shape = ir.Shape(tensor.shape.dims, frozen=True)
    return value


def _tensor(content: Any, dtype: ir.DataType | None) -> ir.TensorProtocol:
    array = np.asarray(content)
    if dtype is not None:
        array = array.astype(dtype.numpy())
    elif not isinstance(content, np.ndarray | np.generic):
        array = array.astype(np.float32) if array.dtype.kind == "f" else array.astype(np.int64)
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype)


def is_detached_constant(value: ir.Value) -> bool:
    """Whether a value is a new `constant`, in no graph yet."""
    return value.producer() is None and value.graph is None and value.const_value is not None


def new_nodes(values: Iterable[ir.Value]) -> list[ir.Node]:
    """The nodes behind some values that are in no graph yet, each after those that it uses."""
    ordered: dict[ir.Node, None] = {}
    pending = [(producer, False) for value in values if (producer := value.producer()) is not None]
    while pending:
        node, ready = pending.pop()
        if node.graph is not None or node in ordered:
            continue
        if ready:
            ordered[node] = None
            continue
        pending.append((node, True))
        used = [value for user in scope.with_nested(node) for value in user.inputs]  # captured in its graphs, too
        operands = [value.producer() for value in reversed(used) if value is not None]
        pending.extend((producer, False) for producer in operands if producer is not None)
    return list(ordered)


def new_graph(inputs: Sequence[ir.Value], results: Sequence[ir.Value], nodes: Sequence[ir.Node], name: str) -> ir.Graph:
    """A graph of new nodes, for an attribute of a new node; the editor gives all but the inputs names.

    Args:
        inputs: What it is given.
        results: What it returns.
        nodes: Its nodes, each after those that it uses.
        name: What it is called.
    """
    graph = ir.Graph(inputs, results, nodes=nodes, name=name)  # it has named them, as other graphs name theirs
    for node in nodes:
        node.name = None
        for value in node.outputs:
            value.name = None if value.name else value.name
    return graph


def discard(nodes: Iterable[ir.Node]) -> None:
    """Detach new nodes that will not be used: they no longer count as users of anything."""
    for node in nodes:
        if node.graph is None:
            for user in scope.with_nested(node):
                detach(user)


def remove_unneeded(graph: ir.Graph, token: CancellationToken = NEVER) -> set[ir.Value]:
    """Remove the nodes of a graph in order that none of its outputs needs; the values that they alone have read.

    Args:
        graph: The graph.
        token: Cancellation token.
    """
    needed, read, dead = set(graph.outputs), set[ir.Value](), []
    for node in token.checked(reversed(graph)):
        operands = (value for value in (*node.inputs, *scope.captured(node)) if value is not None)
        if needed.isdisjoint(node.outputs):
            dead.append(node)
            read.update(operands)
        else:
            needed.update(operands)
    graph.remove(dead)
    discard(dead)
    return read - needed


def detach_orphans(nodes: Iterable[ir.Node]) -> None:
    """Detach nodes of no graph that use operands or results of some nodes: what a rewrite that raised leaves behind."""
    for value in {value for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}:
        discard([use.node for use in value.uses() if use.node.graph is None])


def detach(node: ir.Node) -> None:
    """Let a node use nothing: none of its operands counts it as a user any more."""
    for position in range(len(node.inputs)):
        replace_input(node, position, None)

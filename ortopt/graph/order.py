"""The order of a graph's nodes: each after those whose results it, or a graph below it, uses."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.onnx_ir_internals import attributes_of
from ortopt.semantics import subgraphs


def insert_behind(graph: ir.Graph, node: ir.Node, before: ir.Node | None) -> None:
    """Put a node into a graph, behind another one, or first of all.

    Args:
        graph: The graph.
        node: The node, which is in none.
        before: The node behind which it stands; None for the first place.
    """
    if before is not None:
        graph.insert_after(before, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def is_sorted(graph: ir.Graph, token: CancellationToken = NEVER) -> bool:
    """Whether every node of a graph stands after the nodes of that graph that it, or a graph below it, uses.

    Args:
        graph: The graph; those below it are not looked into for their own order.
        token: Cancellation token.
    """
    known: set[ir.Value | None] = {None, *graph.inputs, *graph.initializers.values()}
    for node in token.checked(graph):
        used = node.inputs
        if attributes_of(node) and (held := list(scope.nested(node))):
            used = (*used, *(value for below in held for inner in below for value in inner.inputs))
        if not known.issuperset(used):
            for value in used:
                if value not in known and value is not None:
                    producer = value.producer()
                    if producer is not None and producer.graph is graph:
                        return False
                    known.add(value)  # it comes from elsewhere
        known.update(node.outputs)
    return True


def in_order(graph: ir.Graph, token: CancellationToken = NEVER) -> dict[ir.Graph, list[ir.Node]]:
    """A topological order of a graph and of each below it, as close to the present one as can be; nothing is changed.

    What onnx-ir's ``Graph.sort`` brings about, which cannot be stopped: the last node that nothing waits for is the
    last, and so on, up to the first. Linear in nodes and uses but for a heap of those that are ready.

    Args:
        graph: The graph.
        token: Cancellation token.

    Returns:
        For each graph that has nodes all of them.

    Raises:
        ValueError: Nodes depend on one another in a circle.
    """
    nodes = list(token.checked(_all_nodes(graph)))
    place = {node: position for position, node in enumerate(nodes)}
    needs: list[list[int]] = []
    waiting = [0] * len(nodes)
    for node in token.checked(nodes):
        producers = (value.producer() for value in node.inputs if value is not None)
        needed = [place[producer] for producer in producers if producer in place]
        if attributes_of(node):  # what is below a node comes before it, so that what it uses does too
            needed += [place[inner] for below in subgraphs(node) for inner in below]
        for other in needed:
            waiting[other] += 1
        needs.append(needed)
    ready = [-position for position, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    reverse: dict[ir.Graph, list[ir.Node]] = {}
    count = 0
    for position in token.checked(_drained(ready)):
        node = nodes[-position]
        count += 1
        reverse.setdefault(scope.graph_of(node), []).append(node)
        for other in needs[-position]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, -other)
    if count != len(nodes):
        raise ValueError("nodes depend on one another in a circle")
    return {at: backwards[::-1] for at, backwards in reverse.items()}


def after_what_they_read(
    nodes: Iterable[ir.Node], among: Container[ir.Node], source: Callable[[ir.Value], ir.Value] = lambda value: value
) -> list[ir.Node]:
    """Nodes, and those among some others that they depend on, each after those that it reads from.

    Args:
        nodes: The nodes.
        among: The others.
        source: What a value is computed from by nodes that do not count; the value itself by default.
    """
    done: dict[ir.Node, None] = {}
    for start in nodes:
        pending = [(start, False)]
        while pending:
            node, ready = pending.pop()
            if ready:
                done[node] = None
            elif node not in done:
                pending.append((node, True))
                read = (source(value).producer() for value in node.inputs if value is not None)
                pending.extend((other, False) for other in read if other is not None and other in among)
    return list(done)


def _drained(heap: list[int]) -> Iterator[int]:
    while heap:
        yield heapq.heappop(heap)


def _all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Nodes with those below each behind it, to any depth."""
    stack = [iter(graph)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node
        if attributes_of(node):
            stack.extend(iter(below) for below in reversed(tuple(subgraphs(node))))

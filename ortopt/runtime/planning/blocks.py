"""Nodes of one kind that can run together, in an order in which all blocks can run."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ortopt import semantics
from ortopt.runtime.planning.node_kinds import GATHERED, NodeKind

Block = tuple[NodeKind, list[ir.Node]]
"""Nodes that one step runs, and what runs them."""


def blocks_of(
    nodes: Sequence[ir.Node],
    operands: Mapping[ir.Node, Sequence[ir.Value]],
    kind: Callable[[ir.Node], NodeKind],
    functions: Mapping[ir.OperatorIdentifier, ir.Function],
) -> Iterator[Block]:
    """Nodes of a graph as blocks: as long a run of a kind as there is.

    Args:
        nodes: The nodes, in topological order.
        operands: What each of them reads.
        kind: What runs a node.
        functions: The model's local functions.
    """
    waits, following = _dependencies(nodes, operands, functions)
    ready: dict[NodeKind, list[int]] = {kind: [] for kind in NodeKind}
    for i, count in enumerate(waits):
        if count == 0:
            heapq.heappush(ready[kind(nodes[i])], i)
    done = 0
    while done < len(nodes):
        first = min((waiting[0], kind_) for kind_, waiting in ready.items() if waiting)[1]
        block: list[ir.Node] = []
        while ready[first] and (not block or first in GATHERED):
            i = heapq.heappop(ready[first])
            block.append(nodes[i])
            for j in following[i]:
                waits[j] -= 1
                if waits[j] == 0:
                    heapq.heappush(ready[kind(nodes[j])], j)
        done += len(block)
        yield first, block


def _dependencies(
    nodes: Sequence[ir.Node],
    operands: Mapping[ir.Node, Sequence[ir.Value]],
    functions: Mapping[ir.OperatorIdentifier, ir.Function],
) -> tuple[list[int], list[list[int]]]:
    """For each node how many nodes it waits for, and which nodes wait for it; random draws keep their order."""
    number = {node: i for i, node in enumerate(nodes)}
    waits = [0] * len(nodes)
    following: list[list[int]] = [[] for _ in nodes]
    last_random: int | None = None
    for i, node in enumerate(nodes):
        before = {number[maker] for value in operands[node] if (maker := value.producer()) in number}
        if semantics.is_random(node, functions):
            if last_random is not None:
                before.add(last_random)
            last_random = i
        waits[i] = len(before)
        for j in before:
            following[j].append(i)
    return waits, following

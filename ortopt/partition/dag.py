"""A graph as the clustering sees it: items in topological order, the values that they read and write, all numbers.

Constants are no items and no values: small ones are copied into groups, others are weights of groups. An item is one
node, or several that must stay together (see `ortopt.partition.bundles`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import chain, pairwise

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.semantics import constant_tensor


@dataclass(slots=True)
class Dag:
    """A graph in numbers.

    Attributes:
        reads: For each item the values that it reads, each once, in order; constants left out.
        writes: For each item the values that it writes, those left out left out.
        wanted: The values that the graph's caller needs.
        colors: For each item where it runs: items of one color may be in one cluster. 0 is the host's color, whose
            items are in no cluster.
        operands: For each item how many operands it has, one that is given twice counted twice; without, as many as it
            reads.
        writer: For each value the item that writes it, or -1.
        readers: For each value the items that read it, in order.
        token: Who may stop the making of it.
    """

    reads: list[tuple[int, ...]]
    writes: list[tuple[int, ...]]
    wanted: frozenset[int]
    colors: list[int]
    operands: list[int] = field(default_factory=list, kw_only=True)
    writer: list[int] = field(init=False)
    readers: list[list[int]] = field(init=False)
    token: InitVar[CancellationToken] = NEVER

    def __post_init__(self, token: CancellationToken) -> None:
        self.operands = self.operands or [len(values) for values in token.checked(self.reads)]
        all_values = chain(token.checked(self.reads), token.checked(self.writes), [tuple(self.wanted)])
        count = 1 + max(chain.from_iterable(all_values), default=-1)
        self.writer = [-1] * count
        self.readers = [[] for _ in range(count)]
        for item, values in enumerate(token.checked(self.writes)):
            for value in values:
                self.writer[value] = item
        for item, values in enumerate(token.checked(self.reads)):
            for value in values:
                self.readers[value].append(item)

    def __len__(self) -> int:
        return len(self.reads)

    def producers(self, item: int) -> list[int]:
        """The items that an item reads from, each once, in the order of its operands."""
        writers = dict.fromkeys(self.writer[value] for value in self.reads[item])
        writers.pop(-1, None)
        return list(writers)

    def consumers(self, item: int) -> list[int]:
        """The items that read what an item writes, each once."""
        return list(dict.fromkeys(reader for value in self.writes[item] for reader in self.readers[value]))

    def arguments(self, items: Collection[int], token: CancellationToken = NEVER) -> tuple[list[int], list[int]]:
        """The values that a set of items takes from the outside, and those that it gives to it.

        Args:
            items: Items, in topological order.
            token: Cancellation token.
        """
        inside = items if isinstance(items, set | frozenset | dict) else set(items)
        taken: dict[int, None] = {}
        returned: list[int] = []
        for item in token.checked(items):
            for value in self.reads[item]:
                if self.writer[value] not in inside:
                    taken[value] = None
            returned += [
                value
                for value in self.writes[item]
                if value in self.wanted or any(reader not in inside for reader in self.readers[value])
            ]
        return list(taken), returned


@dataclass(slots=True)
class Numbered:
    """A graph with its `Dag`.

    Attributes:
        graph: The graph.
        items: The nodes of each item, in topological order.
        dag: The same in numbers.
        values: The value behind each number.
    """

    graph: ir.Graph
    items: list[tuple[ir.Node, ...]]
    dag: Dag
    values: list[ir.Value]


def number(
    graph: ir.Graph,
    colors: Mapping[ir.Node, int],
    together: Iterable[Collection[ir.Node]] = (),
    in_order: Sequence[ir.Node] = (),
    token: CancellationToken = NEVER,
) -> Numbered:
    """See a graph as numbers. Linear in its nodes.

    Args:
        graph: The graph, in topological order.
        colors: Where each node runs; a node that is not there has the host's color.
        together: Sets of nodes that are one item each; contracting them makes no circle.
        in_order: Nodes that keep their order, in it: each item of them reads a value of no content from the one before.
        token: Cancellation token.
    """
    items = _items(graph, together, in_order, token)
    numbers: dict[ir.Value, int] = {}

    def number_of(value: ir.Value) -> int:
        return numbers.setdefault(value, len(numbers))

    reads: list[tuple[int, ...]] = []
    writes: list[tuple[int, ...]] = []
    operands: list[int] = []
    for nodes in token.checked(items):
        used, again = _used(nodes)
        own = dict.fromkeys(value for node in nodes for value in node.outputs if value.name != "")
        reads.append(tuple(number_of(value) for value in used if value not in own))
        writes.append(tuple(number_of(value) for value in own))
        operands.append(len(reads[-1]) + (again if len(nodes) == 1 else 0))
    for before, after in _steps(items, in_order):
        signal = number_of(ir.Value(type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([0])))
        writes[before] += (signal,)
        reads[after] += (signal,)
    wanted = frozenset(map(number_of, graph.outputs))
    dag = Dag(
        reads, writes, wanted, [colors.get(nodes[0], 0) for nodes in token.checked(items)], token, operands=operands
    )
    return Numbered(graph, items, dag, list(numbers))


def _used(nodes: Sequence[ir.Node]) -> tuple[dict[ir.Value, None], int]:
    """The values that nodes read, constants apart, in order; and how many operands repeat one before."""
    used: dict[ir.Value, None] = {}
    again = 0
    for node in nodes:
        for value in node.inputs:
            if value is not None and constant_tensor(value) is None:
                again += value in used
                used[value] = None
        if node.attributes:
            used.update(dict.fromkeys(value for value in scope.captured(node) if constant_tensor(value) is None))
    return used, again


def _items(
    graph: ir.Graph, together: Iterable[Collection[ir.Node]], in_order: Sequence[ir.Node], token: CancellationToken
) -> list[tuple[ir.Node, ...]]:
    bundle_of = {node: bundle for bundle in map(tuple, together) for node in bundle}
    nodes = [node for node in token.checked(graph) if node in bundle_of or not is_constant_node(node)]
    if not bundle_of:
        return [(node,) for node in nodes]
    items: dict[int, list[ir.Node]] = {}
    for node in token.checked(nodes):
        items.setdefault(id(bundle_of.get(node, node)), []).append(node)
    return _sorted(list(map(tuple, token.checked(items.values()))), in_order, token)


def _steps(items: Sequence[tuple[ir.Node, ...]], in_order: Sequence[ir.Node]) -> list[tuple[int, int]]:
    """The pairs of items that must follow one another for some nodes to keep their order."""
    if not in_order:
        return []
    asked = set(in_order)
    item_of = {node: index for index, nodes in enumerate(items) for node in nodes if node in asked}
    return [(item_of[a], item_of[b]) for a, b in pairwise(in_order) if item_of[a] != item_of[b]]


def _sorted(
    items: list[tuple[ir.Node, ...]], in_order: Sequence[ir.Node], token: CancellationToken
) -> list[tuple[ir.Node, ...]]:
    """Items after those that they read from; contracting has moved some."""
    item_of = {
        value: index for index, nodes in enumerate(token.checked(items)) for node in nodes for value in node.outputs
    }
    needs = [
        {
            item_of[value]
            for node in nodes
            for value in (*node.inputs, *scope.captured(node))
            if value in item_of and item_of[value] != index
        }
        for index, nodes in enumerate(token.checked(items))
    ]
    for before, after in _steps(items, in_order):
        needs[after].add(before)
    order = topological(needs, token=token)
    return [items[index] for index in order]


def topological(
    needs: Sequence[Collection[int]], ranks: Sequence[int] | None = None, token: CancellationToken = NEVER
) -> list[int]:
    """A topological order that keeps to a given one where it can: of what is ready, the lowest rank comes first.

    Args:
        needs: For each item those that come before it.
        ranks: For each item its place in the given order; its own number if None.
        token: Cancellation token.

    Raises:
        ValueError: If there is a circle.
    """
    missing = [len(before) for before in needs]
    after: list[list[int]] = [[] for _ in needs]
    for item, before in enumerate(token.checked(needs)):
        for other in before:
            after[other].append(item)
    rank = ranks or range(len(needs))
    ready = [(rank[item], item) for item, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    for _, item in token.checked(popped(ready)):
        order.append(item)
        for other in after[item]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (rank[other], other))
    if len(order) < len(needs):
        raise ValueError("there is a circle")
    return order


def popped(heap: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is in a heap, and comes into it meanwhile, the least first."""
    while heap:
        yield heapq.heappop(heap)


def is_constant_node(node: ir.Node) -> bool:
    """Whether a node is a Constant whose content is known."""
    return node.op_type == "Constant" and not node.domain and constant_tensor(node.outputs[0]) is not None

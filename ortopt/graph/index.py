"""The nodes of every graph by op, kept current by the editor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.onnx_ir_internals import attributes_of
from ortopt.semantics import subgraphs

Nodes = dict[ir.Node, None]


def op_key(domain: str, op_type: str) -> str:
    """How an op is spelled in `RewriteRule.roots`: ``Add``, or ``com.microsoft::Gelu``."""
    return f"{domain}::{op_type}" if domain else op_type


class OpIndex:
    """The nodes of every graph of a model, by op key.

    Args:
        model: The model; `scope.attach` has seen it.
        token: Cancellation token of the construction.

    Attributes:
        ops_changed: How often an op may have come into the model that it did not have, or have gone from it.
    """

    def __init__(self, model: ir.Model, token: CancellationToken = NEVER) -> None:
        self._graphs: dict[ir.Graph, dict[str, Nodes]] = {}
        self._totals: Counter[str] = Counter()
        self.ops_changed = 0
        for graph in scope.graphs(model, token):
            self.build(graph, token)

    def build(self, graph: ir.Graph, token: CancellationToken = NEVER) -> None:
        """Index the nodes of a graph (not of those below it).

        Args:
            graph: The graph.
            token: Cancellation token.
        """
        by_op: dict[str, Nodes] = {}
        for node in token.checked(graph):
            name = node.op_type
            if node.domain:
                name = f"{node.domain}::{name}"
            nodes = by_op.get(name)
            if nodes is None:
                by_op[name] = {node: None}
            else:
                nodes[node] = None
        self.drop(graph)
        self._graphs[graph] = by_op
        for name, nodes in by_op.items():
            self._totals[name] += len(nodes)
        self.ops_changed += 1

    def add(self, graph: ir.Graph, node: ir.Node) -> None:
        """Take up a node that has come into a graph, and the graphs below it."""
        name = op_key(node.domain, node.op_type)
        nodes = self._graphs[graph].setdefault(name, {})
        if node not in nodes:
            nodes[node] = None
            self._totals[name] += 1
            if self._totals[name] == 1:
                self.ops_changed += 1
        if attributes_of(node):
            for inner in subgraphs(node):
                for below in scope.below(inner):
                    self.build(below)

    def discard(self, graph: ir.Graph, node: ir.Node) -> None:
        """Forget a node that has left a graph, and the graphs below it."""
        name = op_key(node.domain, node.op_type)
        nodes = self._graphs[graph][name]
        if node in nodes:
            del nodes[node]
            self._totals[name] -= 1
            if not self._totals[name]:
                self.ops_changed += 1
        if attributes_of(node):
            for inner in subgraphs(node):
                for below in scope.below(inner):
                    self.drop(below)

    def drop(self, graph: ir.Graph) -> None:
        """Forget a graph."""
        for name, nodes in self._graphs.pop(graph, {}).items():
            self._totals[name] -= len(nodes)
        self.ops_changed += 1

    def graphs(self) -> tuple[ir.Graph, ...]:
        """The graphs of the model: the main graph first, outer graphs before those that edits have put below them."""
        return tuple(self._graphs)

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, graph: ir.Graph) -> bool:
        return graph in self._graphs

    def nodes(self, graph: ir.Graph, op: str) -> tuple[ir.Node, ...]:
        """The nodes of a graph that are of one op, older ones first.

        Args:
            graph: A graph of the model.
            op: ``Add``, or ``com.microsoft::Gelu``.
        """
        return tuple(self._graphs[graph].get(op, ()))

    def has_any(self, graph: ir.Graph, ops: Iterable[str]) -> bool:
        """Whether a graph has a node of one of the ops."""
        by_op = self._graphs[graph]
        return any(by_op.get(op) for op in ops)

    def has_any_anywhere(self, ops: Iterable[str]) -> bool:
        """Whether any graph of the model has a node of one of the ops; costs the same however many graphs there are."""
        return any(self._totals[op] for op in ops)

    def total(self, op: str) -> int:
        """How many nodes of an op the model has."""
        return self._totals[op]

    def total_of_all(self) -> int:
        """How many nodes the model has; costs the same however many these are."""
        return self._totals.total()

    def size(self, graph: ir.Graph) -> int:
        """How many nodes a graph has."""
        return sum(map(len, self._graphs[graph].values()))

    def holds_exactly(self, graph: ir.Graph) -> bool:
        """Whether the nodes that stand in a graph are those that are known here, by the same ops; looks at each."""
        by_op: dict[str, Nodes] = self._graphs[graph]
        nothing: Nodes = {}
        count = 0
        for node in graph:
            name = node.op_type
            if node.domain:
                name = f"{node.domain}::{name}"
            if node not in by_op.get(name, nothing):
                return False
            count += 1
        return count == self.size(graph)

    def counts(self, graph: ir.Graph) -> dict[str, int]:
        """How many nodes of each op a graph has."""
        return {op: len(nodes) for op, nodes in self._graphs[graph].items() if nodes}

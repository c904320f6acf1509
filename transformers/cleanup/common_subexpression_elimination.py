"""Two equal nodes compute the same twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import CancellationToken
from ortopt.graph import scope
from ortopt.graph.nested_walk import NestedWalk
from ortopt.graph.provenance import PASS_KEY
from ortopt.graph.refusal import Code, Reason
from ortopt.graph.structural_keys import node_key
from ortopt.onnx_ir_internals import attributes_of, first_use, get_meta, use_count
from ortopt.options import TransformerLevel
from ortopt.transformer import Context, GraphTransformer

APART = "ensure_unique_dq"
"""The pass whose new nodes are not joined again."""


class CommonSubexpressionElimination(GraphTransformer):
    """Nodes with the same op, attributes and inputs → one node.

    What `ensure_unique_dq` has made in the same run stays. For other runtimes than ONNX Runtime (``--target onnx``)
    QuantizeLinear and DequantizeLinear stay as they are: many of them match an op within pairs of its own.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL4)
    after = ("constant_sharing", "group_fusion")
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Merge equal nodes of a graph and of those nested in it, where the values before them are visible."""
        if scope.of(graph).parent is not None:
            return False  # the outermost graph's turn did it
        if context.level is TransformerLevel.LEVEL4 and not scope.of(graph).in_group:
            return False  # level 4 only looks at what has just been grouped
        changed = False
        numbering = _Numbering(graph, context.cancellation)
        for node in numbering.nodes:
            first = numbering.first_equal(node)
            if first is not None:
                alone = _only_users(first)
                if _merge(node, first, context):
                    changed = True
                    numbering.take_up(alone)
        return changed


class _Numbering:
    """The nodes in scope, by what they compute, to find an equal one for a later node.

    A node with an input that no other node uses is equal to no other: it gets no key before a merge gives the input
    another user. In a chain no node gets one.

    Args:
        graph: The outermost graph.
        token: Cancellation token.

    Attributes:
        nodes: All nodes; those in scope that have a key are visible by it.
    """

    def __init__(self, graph: ir.Graph, token: CancellationToken) -> None:
        self.nodes: NestedWalk[ir.Node, ir.Node] = NestedWalk(graph, partial(_items, token=token))
        self._skipped: set[ir.Node] = set()

    def first_equal(self, node: ir.Node) -> ir.Node | None:
        """The first node in scope that equals a node; if there is none, the node is entered, and None returned."""
        for value in node.inputs:
            if value is not None and use_count(value) == 1:
                self._skipped.add(node)
                return None
        key = node_key(node, {})
        first = self.nodes.visible.get(key)
        if first is None or first.graph is None:
            self.nodes.enter(key, node)
            return None
        return first

    def take_up(self, nodes: list[ir.Node]) -> None:
        """Enter nodes that had no key, if they may be equal to another one now."""
        for node in nodes:
            if (
                not self.nodes.is_open(node.graph)
                or node not in self._skipped
                or any(v and use_count(v) == 1 for v in node.inputs)
            ):
                continue
            self._skipped.discard(node)
            key = node_key(node, {})
            if key not in self.nodes.visible:
                self.nodes.enter(key, node, scope.graph_of(node))


def _only_users(node: ir.Node) -> list[ir.Node]:
    """The users of those results of a node that have one user: after a merge they may be equal to others."""
    uses = (first_use(value) for value in node.outputs if use_count(value) == 1)
    return [use.node for use in uses if use is not None]


def _items(graph: ir.Graph, token: CancellationToken) -> Iterator[ir.Node | ir.Graph]:
    """The nodes of a graph, and behind each that is still there the graphs below it."""
    for node in token.checked(tuple(token.checked(graph))):
        if node.op_type == "Constant" and not node.domain:
            continue  # constant_sharing's
        yield node
        if attributes_of(node) and node.graph is not None:
            yield from semantics.subgraphs(node)


def _merge(node: ir.Node, first: ir.Node, context: Context) -> bool:
    """Replace the results of a node by those of an equal one."""
    used = [position for position, value in enumerate(node.outputs) if use_count(value) or value.is_graph_output()]
    if not used:
        return False
    if not semantics.may_merge(node, context.model.functions):
        context.refuse(node, "two runs of it may differ, or it may have effects")
        return False
    if context.options.target.keeps_to_onnx and semantics.key(node) in semantics.QUANTIZERS | semantics.DEQUANTIZERS:
        context.refuse(
            node, Reason("other runtimes match an op within pairs of its own (--target onnx)", Code.PLACEMENT)
        )
        return False
    if get_meta(node, PASS_KEY) == APART:
        context.refuse(node, f"{APART} has made it, for one user")
        return False
    if any(position >= len(first.outputs) or not first.outputs[position].name for position in used):
        context.refuse(node, "the equal node before it does not give all of its results")
        return False
    replacements = {node.outputs[p]: first.outputs[p] for p in used}
    return context.substitute(replacements, before=node, origin=(first,), why=f"equals {first.name or first.op_type}")

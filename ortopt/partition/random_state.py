"""Nodes with random state stay in one group, in their order: what one draws depends on what others have drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.partition.placement import Placement
from ortopt.semantics import RANDOM_OPS, Functions, is_random, key, subgraphs


def bundle(
    graph: ir.Graph,
    placement: Placement,
    functions: Functions,
    places: Mapping[ir.Node, str | None],
    token: CancellationToken = NEVER,
) -> tuple[list[ir.Node], str] | None:
    """The random nodes of a graph with all that lies between them, and the provider that runs all of it.

    None where there are fewer than two, or no provider runs all of them: those that can only be run apart stay apart.

    Args:
        graph: The graph, in topological order.
        placement: Who runs what.
        functions: The model's local functions.
        places: Where each node would run by itself.
        token: Who may stop it.
    """
    drawn = [node for node in token.watch(graph) if _may_draw(node, functions) and is_random(node, functions)]
    placed = [node for node in drawn if places[node] is not None]
    if len(placed) < 2:
        return None
    between = _between(graph, placed, token)
    common = [set(placement.providers_of(node)) for node in between]
    for provider in placement.providers_of(placed[0]):
        if all(provider in providers for providers in common):
            return between, provider
    return None


def _may_draw(node: ir.Node, functions: Functions) -> bool:
    """Whether it is worth asking: most nodes cannot be random, and there may be 100,000."""
    return (
        key(node) in RANDOM_OPS
        or node.op_type == "Dropout"
        or (bool(node.attributes) and next(iter(subgraphs(node)), None) is not None)
        or node.op_identifier() in functions
    )


def _between(graph: ir.Graph, nodes: Iterable[ir.Node], token: CancellationToken) -> list[ir.Node]:
    """Some nodes, and those that depend on one of them and that one of them depends on."""
    ends = set(nodes)
    after, before = set(ends), set(ends)
    order = [(node, _producers(node)) for node in token.watch(graph)]
    for node, producers in token.watch(order):
        if not after.isdisjoint(producers):
            after.add(node)
    for node, producers in token.watch(reversed(order)):
        if node in before:
            before.update(producers)
    return [node for node, _ in order if node in after and node in before]


def _producers(node: ir.Node) -> list[ir.Node]:
    values = (*node.inputs, *scope.captured(node)) if node.attributes else node.inputs
    return [producer for value in values if value is not None and (producer := value.producer()) is not None]


__all__ = ["bundle"]

"""Nodes with random state keep their order, in one group where one provider runs all that lies between them.

What one draws may depend on what others have drawn before: ONNX Runtime has one generator for all nodes without a seed,
on the CPU for Dropout in training, on CUDA for every op, and `onnxruntime.set_seed` makes that reproducible. Nodes in
no group are ONNX Runtime's too, where it has a kernel for them. Inside of a session it orders nodes that do not depend
on each other as it likes; between sessions the order is the file's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.partition.placement import Placement
from ortopt.semantics import RANDOM_OPS, Functions, is_random, key, subgraphs


class Drawing(Struct, frozen=True):
    """The nodes of a graph that draw random numbers.

    Attributes:
        order: All of them, in the order that they keep.
        bundles: Those that stay together with all that lies between them, each with the provider that runs all of it.
    """

    order: list[ir.Node]
    bundles: list[tuple[list[ir.Node], str]]


def drawing(
    graph: ir.Graph,
    placement: Placement,
    functions: Functions,
    places: Mapping[ir.Node, str | None],
    token: CancellationToken = NEVER,
) -> Drawing:
    """The nodes of a graph that draw random numbers, and which of them stay together: all that can.

    Args:
        graph: The graph, in topological order.
        placement: Which provider runs which node.
        functions: The model's local functions.
        places: Where each node would run by itself.
        token: Cancellation token.
    """
    order = [node for node in token.checked(graph) if _may_draw(node, functions) and is_random(node, functions)]
    bundles = []
    for is_placed, run in groupby(order, key=lambda node: places[node] is not None):
        nodes = list(run)
        if is_placed and len(nodes) > 1:
            between = _between(graph, nodes, token)
            provider = _common_provider(between, placement)
            if provider is not None:
                bundles.append((between, provider))
    return Drawing(order, bundles)


def _common_provider(nodes: Sequence[ir.Node], placement: Placement) -> str | None:
    """The first provider that runs all of some nodes."""
    common = [set(placement.providers_of(node)) for node in nodes]
    found = (name for name in placement.providers_of(nodes[0]) if all(name in providers for providers in common))
    return next(found, None)


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
    order = [(node, _producers(node)) for node in token.checked(graph)]
    for node, producers in token.checked(order):
        if not after.isdisjoint(producers):
            after.add(node)
    for node, producers in token.checked(reversed(order)):
        if node in before:
            before.update(producers)
    return [node for node, _ in order if node in after and node in before]


def _producers(node: ir.Node) -> list[ir.Node]:
    values = (*node.inputs, *scope.captured(node)) if node.attributes else node.inputs
    return [producer for value in values if value is not None and (producer := value.producer()) is not None]

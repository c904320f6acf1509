"""Nodes that stay together in one group: those with random state, and the parts of a quantized op.

What a node with random state draws may depend on what others have drawn before: ONNX Runtime has one generator for all
nodes without a seed, on the CPU for Dropout in training, on CUDA for every op, and `onnxruntime.set_seed` makes that
reproducible. They keep their order, in one group where one provider runs all that lies between them. Nodes in no group
are ONNX Runtime's too, where it has a kernel for them. Inside of a session it orders nodes that do not depend on each
other as it likes; between sessions the order is the file's.

A quantized unit is a DequantizeLinear, the op that reads it, and the QuantizeLinear behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.partition.placement import Placement
from ortopt.semantics import RANDOM_OPS, Functions, constant_tensor, is_random, key, subgraphs
from ortopt.semantics.domains import MICROSOFT

_DOMAINS: Final = frozenset({"", MICROSOFT})
_MAX_BETWEEN: Final = 2
"""How many nodes there may be between the op and QuantizeLinear."""


def units(
    graph: ir.Graph, placement: Placement, places: Mapping[ir.Node, str | None], token: CancellationToken = NEVER
) -> list[tuple[list[ir.Node], str]]:
    """The quantized units of a graph, each with the provider that runs all of it.

    Args:
        graph: The graph, in topological order; it draws no random numbers.
        placement: Which provider runs which node.
        places: Where each node would run by itself.
        token: Cancellation token.
    """
    result: list[tuple[list[ir.Node], str]] = []
    unread: set[ir.Node] = set()
    for node in token.checked(graph):
        if _is(node, "DequantizeLinear"):
            if places[node] is not None and _is_by_constants(node):
                unread.add(node)
            continue
        if not unread:
            continue
        read = {
            producer: None for value in node.inputs if value is not None and (producer := value.producer()) in unread
        }
        unread.difference_update(read)  # whoever comes first, has them or nobody
        provider = places[node]
        if not read or provider is None or any(subgraphs(node)):
            continue
        unit = [
            producer
            for producer in read
            if provider in placement.providers_of(producer)
            and all(user.graph is graph for user, _ in producer.outputs[0].uses())
        ]
        if unit:
            result.append(([*unit, node, *_behind(node, provider, placement, graph)], provider))
    return result


def _behind(node: ir.Node, provider: str, placement: Placement, graph: ir.Graph) -> list[ir.Node]:
    """What follows an op up to QuantizeLinear, that included; nothing where there is none."""
    if _is(node, "QuantizeLinear"):
        return []
    between: list[ir.Node] = []
    for _ in range(_MAX_BETWEEN + 1):
        if len(node.outputs) != 1 or node.outputs[0].is_graph_output():
            return []
        readers = dict.fromkeys(user for user, _ in node.outputs[0].uses())
        if not readers or any(
            reader.graph is not graph or provider not in placement.providers_of(reader) for reader in readers
        ):
            return []
        if all(_is(reader, "QuantizeLinear") and _is_by_constants(reader) for reader in readers):
            return [*between, *readers]
        node, *others = readers
        operands = [value for value in node.inputs if value is not None and constant_tensor(value) is None]
        if others or len(operands) != 1 or any(subgraphs(node)):
            return []
        between.append(node)
    return []


def _is(node: ir.Node, op: str) -> bool:
    return node.op_type == op and node.domain in _DOMAINS


def _is_by_constants(node: ir.Node) -> bool:
    """Whether scale and zero point are constants: else what makes them might read the unit."""
    return all(value is None or constant_tensor(value) is not None for value in node.inputs[1:])


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

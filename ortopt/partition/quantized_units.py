"""Quantized units stay whole: DequantizeLinear, the op that reads it, QuantizeLinear behind it.

ONNX Runtime makes one kernel of integers of such a unit, where all of it is in one session. Cut apart, its parts are
kernels of floats with conversions between them, and floats pass from group to group, four times as large.

A unit is an op with all that dequantizes for it, and with what follows up to QuantizeLinear where nobody else looks
(an activation). A DequantizeLinear that several ops read belongs to the first of them in the graph's order. So what
comes out of a unit is read behind its op only, and what goes into it is made before its op: with each unit at the place
of its op the order remains, and contracting makes no circle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.partition.placement import Placement
from ortopt.semantics import constant_tensor, subgraphs
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

"""Nodes that run together in one session cost one call; the runtime wants them as functions."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.options import TransformerLevel
from ortopt.partition.partitioning import apply, next_number, partition_graph
from ortopt.partition.placement import Placement
from ortopt.partition.settings import ARGUMENT_LIMIT, PartitionOptions, Policy
from ortopt.semantics import GROUP_DOMAIN
from ortopt.transformer import Context, GraphTransformer


@dataclass(frozen=True)
class GroupFusionOptions:
    """How graphs are cut.

    Attributes:
        policy: ``cost`` or ``literal``.
        argument_limit: How many runtime values a group may take and give; weights do not count.
        horizontal: Whether nodes that only share an operand may be in one group.
        allow: Ops by commas; if not empty, only these are grouped.
        deny: Ops by commas that are not grouped.
    """

    policy: Policy = "cost"
    argument_limit: int = ARGUMENT_LIMIT
    horizontal: bool = True
    allow: str = ""
    deny: str = ""


class GroupFusion(GraphTransformer):
    """Nodes of one execution provider → a function of the domain ``ortopt.group``, and a call."""

    levels = (TransformerLevel.LEVEL4,)
    apply_once = True
    offers_rewrites = True
    produces = ((GROUP_DOMAIN, "group_K"),)
    Options = GroupFusionOptions

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Group a graph that is in no function, unless it has groups already."""
        if scope.of(graph).in_function or any(node.domain == GROUP_DOMAIN for node in graph):
            return False
        chosen = self.options
        options = PartitionOptions(
            providers=context.options.providers,
            policy=chosen.policy,
            argument_limit=chosen.argument_limit,
            horizontal=chosen.horizontal,
            allow=_commas(chosen.allow),
            deny=_commas(chosen.deny),
        )
        found = partition_graph(graph, Placement(context.model, options), options)
        refused = {index for index, cluster in enumerate(found.clusters) if not context.rewrite(cluster.nodes)}
        calls = apply(context.edit, found.without(refused), next_number(context.model))
        if not calls:
            return False
        context.observers.rewrote(self, calls, context.workspace.offered)
        context.mark = context.edit.version
        return True


def _commas(text: str) -> tuple[str, ...]:
    return tuple(part for piece in text.split(",") if (part := piece.strip()))

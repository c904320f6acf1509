"""Nodes that run together in one session cost one call; the runtime wants them as functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.onnx_ir_internals import attributes_of
from ortopt.options import Numerics, TransformerLevel
from ortopt.partition.settings import ARGUMENT_LIMIT, PartitionOptions, Policy
from ortopt.semantics import GROUP_DOMAIN, owns_interfaces, subgraphs
from ortopt.transformer import Context, GraphTransformer

if TYPE_CHECKING:
    from ortopt.partition.groups import Group
    from ortopt.partition.partitioning import Partition


@dataclass(frozen=True)
class GroupFusionOptions:
    """How graphs are cut.

    Attributes:
        policy: ``cost`` or ``literal``.
        argument_limit: How many runtime values a group may take and give; weights do not count.
        horizontal: Whether nodes that only share an operand may be in one group.
        preparation: Whether nodes may be changed so that groups grow.
        allow: Ops, with spaces between them; if not empty, only these are grouped.
        deny: Ops, with spaces between them, that are not grouped.
    """

    policy: Policy = "cost"
    argument_limit: int = ARGUMENT_LIMIT
    horizontal: bool = True
    preparation: bool = True
    allow: str = ""
    deny: str = ""

    def __post_init__(self) -> None:
        self.partition()  # refuses what makes no sense

    def partition(self, providers: tuple[str, ...] = ()) -> PartitionOptions:
        """The same for the library that does the work."""
        return PartitionOptions(
            providers=providers,
            policy=self.policy,
            argument_limit=self.argument_limit,
            horizontal=self.horizontal,
            preparation=self.preparation,
            allow=_ops(self.allow),
            deny=_ops(self.deny),
        )


class GroupFusion(GraphTransformer):
    """Nodes of one execution provider → a function of the domain ``ortopt.group``, and a call."""

    levels = (TransformerLevel.LEVEL4,)
    after = ("sibling_matmul_fusion",)
    apply_once = True
    numerics = Numerics.REORDERED
    keeps_elementwise = True
    offers_rewrites = True
    produces = ((GROUP_DOMAIN, "group_K"),)
    fuses = ()  # a group is no op: its nodes stay what they are
    Options = GroupFusionOptions

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Group a graph that is in no function and below no op that runs its graphs itself, unless it has groups."""
        if scope.of(graph).in_function or scope.is_foreign(graph):
            return False
        if any(node.domain == GROUP_DOMAIN for node in context.cancellation.checked(graph)):
            return _tidy(graph, context)
        strange = next(filter(_names_its_graphs, context.cancellation.checked(graph)), None)
        if strange is not None:
            context.refuse(strange, "it asks for the names in its graphs, which ONNX Runtime changes inside a function")
            return False
        # the library is loaded by the runs that group: they are few
        from ortopt.partition.partitioning import apply, next_number, settle

        options = self.options.partition(context.options.providers)
        edit, version = context.edit, context.edit.version
        partition = settle(edit, graph, options, context.attempt, context.cancellation)
        if context.listens_to_refusals:
            _explain(partition, options, context)
        refused = {index for index, cluster in enumerate(partition.clusters) if not context.offer(cluster.nodes)}
        kept, first = partition.without(refused), next_number(context.model)

        def group() -> list[list[ir.Node]]:
            return [[call] for call in apply(edit, kept, first, context.cancellation)]

        context.attempt_all([cluster.nodes for cluster in kept.clusters], group)  # a graph is grouped at once, or not
        return edit.version != version


def _names_its_graphs(node: ir.Node) -> bool:
    """Whether a node runs graphs of its own as it likes: ONNX Runtime inlines groups, and renames what is in them."""
    return bool(attributes_of(node)) and not owns_interfaces(node) and next(subgraphs(node), None) is not None


def _explain(partition: Partition, options: PartitionOptions, context: Context) -> None:
    """Say why nodes stay outside."""
    from ortopt.partition.estimate import is_view
    from ortopt.partition.placement import Placement

    placement = Placement(context.model, options)
    for node in context.cancellation.checked(partition.outside):
        if placement.provider_of(node) is None:
            context.refuse(node, "no chosen provider runs it")
        elif is_view(node):
            context.refuse(node, "a view at the edge costs nothing outside")
        else:
            context.refuse(node, "its session would cost more than it saves")


def _tidy(graph: ir.Graph, context: Context) -> bool:
    """Drop inputs and outputs of groups that are not needed any more after passes ran inside the groups."""
    from ortopt.partition.groups import groups_of
    from ortopt.partition.outlining import needs_tidying

    changed = False
    for group in groups_of(context.model, context.cancellation):
        if group.call.graph is graph and needs_tidying(group):
            changed |= context.attempt((group.call,), partial(_tidied, group, context))
    return changed


def _tidied(group: Group, context: Context) -> list[ir.Node]:
    from ortopt.partition.outlining import tidy

    tidy(context.edit, group)
    return [group.call]


def _ops(text: str) -> tuple[str, ...]:
    """Ops of a list; between the braces of ``--passes`` a comma would end it."""
    return tuple(text.replace(",", " ").split())

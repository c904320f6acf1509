"""From a model to its groups: place, cut, outline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.edit import Conflict, Editor
from ortopt.options import Options
from ortopt.partition import balance, bundles, cost, estimate, lazy_tensor_policy, preparation, shape_only_outputs
from ortopt.partition.dag import Numbered, number, topological
from ortopt.partition.groups import PREFIX, Group, groups_of
from ortopt.partition.outlining import Cluster, outline
from ortopt.partition.placement import Placement
from ortopt.partition.settings import PartitionOptions
from ortopt.partition.shape_only_outputs import Attempt
from ortopt.semantics import GROUP_DOMAIN, subgraphs

_MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Partition:
    """How one graph is cut; data, nothing is changed by it.

    Attributes:
        graph: The graph.
        clusters: What becomes a group each, in a topological order.
        outside: The nodes in no cluster, in a topological order; Constants left out.
        order: Clusters (by index) and outside nodes in a topological order of what becomes of the graph.
    """

    graph: ir.Graph
    clusters: tuple[Cluster, ...]
    outside: tuple[ir.Node, ...]
    order: tuple[int | ir.Node, ...]

    def without(self, refused: Collection[int]) -> Partition:
        """The same with some clusters, named by their indices, left as they are."""
        kept = [index for index in range(len(self.clusters)) if index not in refused]
        now = {index: place for place, index in enumerate(kept)}
        order: list[int | ir.Node] = []
        for unit in self.order:
            if not isinstance(unit, int):
                order.append(unit)
            elif unit in now:
                order.append(now[unit])
            else:
                order += self.clusters[unit].nodes
        outside = tuple(unit for unit in order if isinstance(unit, ir.Node))
        return Partition(self.graph, tuple(self.clusters[index] for index in kept), outside, tuple(order))


def partition(
    model: ir.Model, options: PartitionOptions | None = None, token: CancellationToken = NEVER
) -> tuple[Partition, ...]:
    """Cut a model: the main graph, and the graphs below nodes that are in no cluster. Nothing is changed.

    Args:
        model: A model as `ortopt.serialization.load.load` returns it; types are inferred if they have not been.
        options: How to cut.
        token: Cancellation token.

    Returns:
        What becomes of each graph; the main graph's first.

    Raises:
        OptimizationCancelled: If the token was set, or its deadline has passed.
    """
    chosen = options or PartitionOptions()
    prepare(model, token)
    placement = Placement(model, chosen)
    return tuple(_walk(model.graph, placement, chosen, token))


def _walk(
    graph: ir.Graph, placement: Placement, options: PartitionOptions, token: CancellationToken
) -> Iterator[Partition]:
    pending = [graph]
    while pending:
        partition = partition_graph(pending.pop(), placement, options, token)
        yield partition
        pending.extend(reversed(_graphs_outside(partition, token)))


def _graphs_outside(partition: Partition, token: CancellationToken) -> list[ir.Graph]:
    """The graphs below nodes that are in no cluster."""
    return [below for node in token.checked(partition.outside) for below in subgraphs(node)]


def prepare(model: ir.Model, token: CancellationToken = NEVER) -> None:
    """Infer types and shapes, and attach to every graph what holds around it."""
    scope.attach(model, Options(), token)
    shapes.infer_model(model, token)


def partition_graph(
    graph: ir.Graph, placement: Placement, options: PartitionOptions, token: CancellationToken = NEVER
) -> Partition:
    """Cut one graph, not those below it.

    Args:
        graph: A graph of a model, in topological order.
        placement: Which provider runs which node.
        options: How to cut.
        token: Cancellation token.
    """
    providers = options.candidates
    functions = scope.of(graph).model.functions
    places = {node: placement.provider_of(node) for node in token.checked(graph)}
    draws = bundles.drawing(graph, placement, functions, places, token)
    together = draws.bundles
    if options.policy == "cost" and not draws.order:  # with an order of their own there might be circles
        together = bundles.units(graph, placement, places, token)
    for nodes, provider in together:
        places.update(dict.fromkeys(nodes, provider))
    colors = {name: color for color, name in enumerate(providers, 1)}
    colored = {node: colors[place] for node, place in token.checked(places.items()) if place is not None}
    numbered = number(graph, colored, [nodes for nodes, _ in together], draws.order, token)
    if options.policy == "literal":
        fused = lazy_tensor_policy.clusters(numbered.dag, limit=options.argument_limit, token=token)
        clusters = [items for items in token.checked(fused) if not _shows_only(numbered, items)]
    else:
        clusters = balance.clusters(
            numbered,
            placement,
            providers,
            limit=options.argument_limit,
            horizontal=options.horizontal,
            whole=cost.HOST not in numbered.dag.colors and scope.of(graph).parent is None,
            token=token,
        )
    clusters = [items for items in token.checked(clusters) if _gives(numbered, items, token)]
    return _partition(numbered, clusters, providers, token)


def _gives(numbered: Numbered, items: list[int], token: CancellationToken) -> bool:
    """Whether a result of a cluster is used: a call without results would be no valid node."""
    _, results = numbered.dag.arguments(dict.fromkeys(items), token)
    return any(numbered.values[value].producer() is not None for value in results)


def _shows_only(numbered: Numbered, items: list[int]) -> bool:
    """Whether a cluster only shows elements in another shape, which costs nothing outside."""
    return all(estimate.is_view(node) for item in items for node in numbered.items[item])


def settle(
    edit: Editor, graph: ir.Graph, options: PartitionOptions, attempt: Attempt, token: CancellationToken = NEVER
) -> Partition:
    """Change a graph so that it is cut better, and cut it.

    Args:
        edit: The editor of the model.
        graph: A graph that is in no function.
        options: How to cut.
        attempt: Makes each change.
        token: Cancellation token.
    """
    placement = Placement(edit.model, options)

    def cut() -> dict[ir.Node, int]:
        partition = partition_graph(graph, placement, options, token)
        return {
            node: index for index, cluster in enumerate(partition.clusters) for node in token.checked(cluster.nodes)
        }

    partition = partition_graph(graph, placement, options, token)
    may_move = options.preparation and any(
        not node.domain and node.op_type in preparation.ROOTS for node in token.checked(partition.outside)
    )
    if may_move and preparation.improve(edit, graph, cut, attempt, token):
        partition = partition_graph(graph, placement, options, token)
    for _ in range(_MAX_ROUNDS):
        if not shape_only_outputs.drop(edit, graph, [cluster.nodes for cluster in partition.clusters], attempt, token):
            break
        edit.restore_order(token)
        partition = partition_graph(graph, placement, options, token)
    return partition


def _partition(
    numbered: Numbered, clusters: list[list[int]], providers: tuple[str, ...], token: CancellationToken
) -> Partition:
    """The clusters of numbers as clusters of nodes."""
    dag = numbered.dag
    cluster_of = {item: index for index, items in enumerate(clusters) for item in items}
    units: list[list[int]] = list(clusters)
    for item in token.checked(range(len(dag))):
        if item not in cluster_of:
            cluster_of[item] = len(units)
            units.append([item])
    needs: list[set[int]] = [set() for _ in units]
    for item in token.checked(range(len(dag))):
        unit = cluster_of[item]
        needs[unit].update(cluster_of[other] for other in dag.producers(item))
        needs[unit].discard(unit)
    order = topological(needs, [items[0] for items in units], token)
    groups: list[Cluster] = []
    outside: list[ir.Node] = []
    sequence: list[int | ir.Node] = []
    for unit in token.checked(order):
        nodes = tuple(node for item in token.checked(units[unit]) for node in numbered.items[item])
        if unit < len(clusters):
            sequence.append(len(groups))
            groups.append(Cluster(providers[dag.colors[units[unit][0]] - 1], nodes))
        else:
            outside += nodes
            sequence += nodes
    return Partition(numbered.graph, tuple(groups), tuple(outside), tuple(sequence))


def _whatever(edit: Editor) -> Attempt:
    """Makes every change that is possible."""

    def attempt(_: Sequence[ir.Node], change: Callable[[], Iterable[ir.Node] | None]) -> bool:
        start = edit.version
        try:
            change()
        except Conflict:
            edit.rollback(start)
            return False
        return True

    return attempt


def apply(edit: Editor, partition: Partition, first: int, token: CancellationToken = NEVER) -> list[ir.Node]:
    """Outline the clusters of a graph.

    Args:
        edit: The editor of the model.
        partition: How the graph is cut; it has not been changed since.
        first: The number of the first group.
        token: Cancellation token; where it stops the run, the caller rolls back what has been done.

    Returns:
        The calls, in the order of the clusters.
    """
    calls = [
        outline(edit, cluster, f"{PREFIX}{first + index}", token)
        for index, cluster in enumerate(token.checked(partition.clusters))
    ]
    if calls:
        graph = partition.graph
        known = {node for node in token.checked(partition.order) if isinstance(node, ir.Node)} | set(calls)
        constants = [node for node in token.checked(graph) if node not in known]
        order = [calls[unit] if isinstance(unit, int) else unit for unit in token.checked(partition.order)]
        edit.reorder(graph, [*constants, *order], token)
    return calls


def group(model: ir.Model, options: PartitionOptions | None = None, token: CancellationToken = NEVER) -> list[Group]:
    """Group a model, in place. A model that has groups already is left as it is.

    Args:
        model: A model as `ortopt.serialization.load.load` returns it.
        options: How to cut.
        token: Cancellation token: the model is as it was then, but for types that are known now.

    Returns:
        Its groups.

    Raises:
        OptimizationCancelled: If the token was set, or its deadline has passed.
    """
    present = groups_of(model, token)
    if present:
        return present
    prepare(model, token)
    edit = Editor(model, shapes.infer_node)
    try:
        _group_all(edit, options or PartitionOptions(), token)
    except Exception:  # the caller's predicate may raise what it likes
        edit.rollback(0)
        raise
    return groups_of(model)


def _group_all(edit: Editor, options: PartitionOptions, token: CancellationToken) -> None:
    count = 0
    pending = [edit.model.graph]
    while pending:
        partition = settle(edit, pending.pop(), options, _whatever(edit), token)
        count += len(apply(edit, partition, count, token))
        pending.extend(reversed(_graphs_outside(partition, token)))
    edit.drop_freed_initializers(token)


def next_number(model: ir.Model) -> int:
    """The first number that no group of a model has."""
    numbers = [
        int(function.name.removeprefix(PREFIX))
        for function in model.functions.values()
        if function.domain == GROUP_DOMAIN and function.name.removeprefix(PREFIX).isdecimal()
    ]
    return max(numbers, default=-1) + 1

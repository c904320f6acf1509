"""What the ``cost`` policy does about small things: islands change sides, small clusters and edge views stay out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ortopt.cancellation import CancellationToken
from ortopt.partition import cost, estimate
from ortopt.partition.dag import Dag, Numbered
from ortopt.partition.placement import Placement

_MAX_ROUNDS = 4


def clusters(
    numbered: Numbered,
    placement: Placement,
    providers: tuple[str, ...],
    *,
    limit: int,
    horizontal: bool,
    whole: bool,
    token: CancellationToken,
) -> list[list[int]]:
    """Cut a graph as cheaply as it can be.

    Args:
        numbered: The graph; the colors of islands are changed.
        placement: Which provider runs which node.
        providers: The provider of each color, from 1.
        limit: How many values a cluster may take and give.
        horizontal: Whether a value that two items read connects them.
        whole: Whether the host has nothing to do, and shall get nothing to do.
        token: Cancellation token.

    Returns:
        The clusters in a topological order.
    """
    dag = numbered.dag

    def cut() -> list[list[int]]:
        return cost.clusters(dag, limit=limit, horizontal=horizontal, whole=whole, token=token)

    result = cut()
    if len(set(dag.colors) - {cost.HOST}) > 1:
        result = _join_islands(numbered, placement, providers, cut, result, token)
    if whole:
        return result
    stripped = (_without_edge_views(numbered, items, token) for items in token.checked(result))
    return [items for items in stripped if items and _pays(numbered, items, token)]


def _join_islands(
    numbered: Numbered,
    placement: Placement,
    providers: tuple[str, ...],
    cut: Callable[[], list[list[int]]],
    clusters: list[list[int]],
    token: CancellationToken,
) -> list[list[int]]:
    """Let light clusters run where their neighbours run, if that is cheaper than the copies; until nothing changes."""
    colors = numbered.dag.colors
    for _ in range(_MAX_ROUNDS):
        moved = False
        for items in token.checked(clusters):
            target = _neighbours_color(numbered.dag, items, token)
            if target is None or not _may_move(numbered, placement, items, providers[target - 1], token):
                continue
            for item in token.checked(items):
                colors[item] = target
            moved = True
        if not moved:
            return clusters
        clusters = cut()
    return clusters


def _neighbours_color(dag: Dag, items: list[int], token: CancellationToken) -> int | None:
    """The one other color that a cluster exchanges values with, the host apart; None if there is none, or several."""
    own = dag.colors[items[0]]
    around = {
        dag.colors[other] for item in token.checked(items) for other in (*dag.producers(item), *dag.consumers(item))
    }
    around -= {own, cost.HOST}
    return around.pop() if len(around) == 1 else None


def _may_move(
    numbered: Numbered, placement: Placement, items: list[int], provider: str, token: CancellationToken
) -> bool:
    nodes = [node for item in token.checked(items) for node in numbered.items[item]]
    if any(estimate.is_heavy(node) for node in token.checked(nodes)):
        return False
    dag, inside = numbered.dag, set(items)
    target = [numbered.values[value] for value in _exchanged(dag, items, inside, token)]
    arguments = sum(map(len, dag.arguments(dict.fromkeys(items), token)))
    saved = estimate.seconds_of_copies(target) + estimate.seconds_of_call(arguments)
    if estimate.seconds_on_cpu(token.checked(nodes)) > saved:
        return False
    return all(provider in placement.providers_of(node) for node in token.checked(nodes))


def _exchanged(dag: Dag, items: list[int], inside: set[int], token: CancellationToken) -> Iterable[int]:
    """The values that a cluster exchanges with other clusters."""
    taken, given = dag.arguments(dict.fromkeys(items), token)
    yield from (value for value in taken if dag.writer[value] != -1)
    yield from (value for value in given if any(reader not in inside for reader in dag.readers[value]))


def _without_edge_views(numbered: Numbered, items: list[int], token: CancellationToken) -> list[int]:
    """A cluster without the views at its edge to the host and the graph's caller: they cost nothing outside."""
    dag = numbered.dag
    inside = dict.fromkeys(items)

    def is_edge(item: int) -> bool:
        if not estimate.is_view(numbered.items[item][0]):  # of several nodes, the first draws random numbers
            return False
        sides = dag.producers(item), dag.consumers(item)
        return any(all(dag.colors[other] == cost.HOST for other in side) for side in sides)

    pending = list(items)
    for item in token.checked(_taken_off(pending)):
        if item in inside and is_edge(item):
            del inside[item]
            dag.colors[item] = cost.HOST  # what is left out is the host's: the next view may be at the edge now
            pending += [*dag.producers(item), *dag.consumers(item)]
    return list(inside)


def _taken_off(pending: list[int]) -> Iterator[int]:
    """What is in a list, and comes into it meanwhile, the last first."""
    while pending:
        yield pending.pop()


def _pays(numbered: Numbered, items: list[int], token: CancellationToken) -> bool:
    """Whether a cluster's session costs less than the host's work, or the host cannot do it."""
    nodes = [node for item in token.checked(items) for node in numbered.items[item]]
    if any(estimate.is_heavy(node) or not estimate.host_can(node) for node in token.checked(nodes)):
        return True
    arguments = sum(map(len, numbered.dag.arguments(dict.fromkeys(items), token)))
    return estimate.seconds_on_host(token.checked(nodes)) > estimate.seconds_of_call(arguments)

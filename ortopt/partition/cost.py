"""The default policy: few sessions, few changes of device, no session that costs more than it saves.

1. Items run in segments of one color. A segment takes everything of its color that is ready, and what becomes ready by
   that, before another color has its turn; of several colors that which the longest chain of changes waits for. With
   two colors no order of the graph changes color less often.
   What reads nothing but constants waits for those that read it, if they have its color.
2. A segment is cut into clusters that are connected: by a value that one item writes and another reads or, with
   horizontal fusion, by a value that both read. Segments follow one another and the clusters of one do not depend on
   each other, so that no circle through the outside can arise.
3. A cluster with more arguments than the limit is cut in topological order.

All of it is linear in the nodes and values.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.partition.dag import Dag, popped

HOST = 0
"""The color of what no provider runs."""


def segments(dag: Dag, token: CancellationToken = NEVER) -> list[list[int]]:
    """The items in an order that changes color seldom, cut where it does; each segment in ascending order."""
    waiting = _waiting(dag, token)
    missing = [sum(not waiting[other] for other in dag.producers(item)) for item in token.checked(range(len(dag)))]
    changes = _changes_to_come(dag, token)
    ready: dict[int, list[tuple[int, int]]] = {}
    for item, count in enumerate(missing):
        if not count and not waiting[item]:
            heapq.heappush(ready.setdefault(dag.colors[item], []), (-changes[item], item))
    result: list[list[int]] = []
    while ready:
        color = min(ready, key=lambda color_key: (ready[color_key][0][0], color_key))
        queue = ready[color]
        segment: list[int] = []
        for _, item in token.checked(popped(queue)):
            segment += _with_waiting(dag, item, waiting)
            for other in dag.consumers(item):
                missing[other] -= 1
                if not missing[other]:
                    heapq.heappush(ready.setdefault(dag.colors[other], []), (-changes[other], other))
        del ready[color]
        segment.sort()
        result.append(segment)
    return result


def _waiting(dag: Dag, token: CancellationToken) -> list[bool]:
    """What reads nothing but constants, at any distance, and is read by its own color only: it waits until it is."""
    waiting = [False] * len(dag)
    for item in token.checked(range(len(dag))):
        if all(dag.writer[value] != -1 and waiting[dag.writer[value]] for value in dag.reads[item]):
            readers = dag.consumers(item)
            waiting[item] = bool(readers) and all(dag.colors[other] == dag.colors[item] for other in readers)
    return waiting


def _with_waiting(dag: Dag, item: int, waiting: list[bool]) -> list[int]:
    """An item with what has waited for it, which waits no more."""
    items = [item]
    pending = [item]
    while pending:
        for other in dag.producers(pending.pop()):
            if waiting[other]:
                waiting[other] = False
                items.append(other)
                pending.append(other)
    return items


def _changes_to_come(dag: Dag, token: CancellationToken) -> list[int]:
    """How often the color changes at most on a way from an item to the end."""
    changes = [0] * len(dag)
    for item in token.checked(reversed(range(len(dag)))):
        color = dag.colors[item]
        changes[item] = max(
            (changes[other] + (dag.colors[other] != color) for other in dag.consumers(item)),
            default=0,
        )
    return changes


def connected(dag: Dag, items: Sequence[int], *, horizontal: bool, token: CancellationToken = NEVER) -> list[list[int]]:
    """The parts of a segment that hang together, in the order of their first items.

    Args:
        dag: The graph.
        items: Items in ascending order.
        horizontal: Whether a value that two items read connects them.
        token: Cancellation token.
    """
    parent = {item: item for item in items}

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    first_reader: dict[int, int] = {}
    for item in token.checked(items):
        for value in dag.reads[item]:
            other = dag.writer[value]
            if other in parent:
                parent[root(item)] = root(other)
            elif horizontal:
                parent[root(item)] = root(first_reader.setdefault(value, item))
    parts: dict[int, list[int]] = {}
    for item in token.checked(items):
        parts.setdefault(root(item), []).append(item)
    return list(parts.values())


class _Growing:
    """A prefix of a cluster, and how many arguments it has."""

    def __init__(self, dag: Dag) -> None:
        self._dag = dag
        self._inside: set[int] = set()
        self._taken: set[int] = set()
        self._readers_outside: dict[int, int] = {}
        self._given = 0

    def add(self, item: int) -> int:
        """Take up the next item; how many arguments there are then."""
        dag = self._dag
        for value in dag.reads[item]:
            if dag.writer[value] not in self._inside:
                self._taken.add(value)
                continue
            self._readers_outside[value] -= 1
            if not self._readers_outside[value] and value not in dag.wanted:
                self._given -= 1
        self._inside.add(item)
        for value in dag.writes[item]:
            self._readers_outside[value] = len(dag.readers[value])
            self._given += bool(dag.readers[value]) or value in dag.wanted
        return len(self._taken) + self._given


def within_limit(dag: Dag, items: Sequence[int], limit: int, token: CancellationToken = NEVER) -> list[list[int]]:
    """Cut a cluster into pieces of at most so many arguments, each but for single items that have more.

    Args:
        dag: The graph.
        items: Items in ascending order.
        limit: How many values a piece may take and give.
        token: Cancellation token.
    """
    taken, given = dag.arguments(dict.fromkeys(items), token)
    if len(taken) + len(given) <= limit:
        return [list(items)]
    pieces: list[list[int]] = []
    start = 0
    while start < len(items):
        growing = _Growing(dag)
        end = start + 1  # what fits, so far
        for position in token.checked(range(start, len(items))):
            if growing.add(items[position]) <= limit:
                end = position + 1
            elif position + 1 - start > 2 * (end - start) + limit:
                break  # arguments may become fewer again, but not that late
        pieces.append(list(items[start:end]))
        start = end
    return pieces


def _sources_together(dag: Dag, parts: list[list[int]]) -> list[list[int]]:
    """One part of those that read nothing from outside, for which a session of its own each would not pay."""
    sources: list[int] = []
    others: list[list[int]] = []
    for part in parts:
        if dag.arguments(dict.fromkeys(part))[0]:
            others.append(part)
        else:
            sources += part
    return [sorted(sources), *others] if sources else others


def clusters(
    dag: Dag,
    *,
    limit: int,
    horizontal: bool = True,
    whole: bool = False,
    token: CancellationToken = NEVER,
) -> list[list[int]]:
    """Cut a graph into clusters.

    Args:
        dag: The graph.
        limit: How many values a cluster may take and give.
        horizontal: Whether a value that two items read connects them.
        whole: Whether the host has nothing to do: then what needs not wait is one cluster, connected or not.
        token: Cancellation token.

    Returns:
        The clusters in a topological order, each with its items in ascending order; items of the host's color are in
        none.
    """
    result: list[list[int]] = []
    for segment in segments(dag, token):
        if dag.colors[segment[0]] == HOST:
            continue
        parts = [segment] if whole else connected(dag, segment, horizontal=horizontal, token=token)
        if horizontal and not whole:
            parts = _sources_together(dag, parts)
        for part in token.checked(parts):
            result += within_limit(dag, part, limit, token)
    return result

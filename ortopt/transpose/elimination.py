"""The cheapest division of a long network in two: vertex by vertex, as dynamic programming does it on a chain.

A network that comes from a graph of nodes is long and thin: a chain with branches that soon meet again. Flow along
shortest paths needs as many rounds there as paths have lengths, each over the whole network. Here a vertex with few
neighbours is left out, and what it costs at best goes over to them: a table with the cheapest cost for each way in
which the neighbours may be divided. So the work is linear in the vertices as long as one has few neighbours.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from msgspec import Struct

MAX_NEIGHBOURS = 6
"""A vertex with more is not left out: a table has two to the power of so many entries."""


class _Table(Struct, frozen=True):
    """A cost that depends on the sides of some vertices.

    Attributes:
        vertices: Which.
        costs: By the number whose bit i says whether ``vertices[i]`` is on the source's side.
    """

    vertices: tuple[int, ...]
    costs: list[int]


class _Choice(Struct, frozen=True):
    """The cheaper side of a vertex, the source's if true, for each way in which its neighbours may be divided."""

    vertex: int
    neighbours: tuple[int, ...]
    sides: list[bool]


def source_side(arcs: Iterable[tuple[int, int, int]], source: int, sink: int) -> frozenset[int] | None:
    """The vertices on the source's side of a cheapest cut; of all such cuts, the one with the fewest.

    Args:
        arcs: Tail, head and what it costs where the tail is on the source's side and the head on the sink's.
        source: The vertex that is always on its side.
        sink: The other one.

    Returns:
        The vertices with `source`; None where too many vertices have too many neighbours.
    """
    tables: dict[int, dict[int, _Table]] = {}
    near: dict[int, set[int]] = {}
    for number, (tail, head, cost) in enumerate(arcs):
        if tail == sink or head == source or not cost:
            continue
        table = _table(tail, head, cost, source, sink)
        for vertex in table.vertices:
            tables.setdefault(vertex, {})[number] = table
            near.setdefault(vertex, set()).update(table.vertices)
    for vertex, neighbours in near.items():
        neighbours.discard(vertex)
    choices = _eliminate(tables, near)
    if choices is None:
        return None
    chosen = {source}
    for choice in reversed(choices):
        division = sum((neighbour in chosen) << bit for bit, neighbour in enumerate(choice.neighbours))
        if choice.sides[division]:
            chosen.add(choice.vertex)
    return frozenset(chosen)


def _table(tail: int, head: int, cost: int, source: int, sink: int) -> _Table:
    """What an arc costs."""
    if tail == source:
        return _Table((), [cost]) if head == sink else _Table((head,), [cost, 0])
    return _Table((tail,), [0, cost]) if head == sink else _Table((tail, head), [0, cost, 0, 0])


def _eliminate(tables: dict[int, dict[int, _Table]], near: dict[int, set[int]]) -> list[_Choice] | None:
    """Leave out each vertex, those with the fewest neighbours first; None where that is not few."""
    choices: list[_Choice] = []
    queue = [(len(neighbours), vertex) for vertex, neighbours in near.items()]
    heapq.heapify(queue)
    number = -1  # the arcs' are not negative
    while queue:
        count, vertex = heapq.heappop(queue)
        if vertex not in near or count != len(near[vertex]):
            continue  # it has gone, or is in the queue with another count
        if count > MAX_NEIGHBOURS:
            return None
        around = near.pop(vertex)
        neighbours = tuple(sorted(around))
        own = tables.pop(vertex)
        best, sides = _best(vertex, neighbours, own.values())
        choices.append(_Choice(vertex, neighbours, sides))
        number -= 1
        for neighbour in neighbours:
            for gone in own:
                tables[neighbour].pop(gone, None)
            tables[neighbour][number] = best
            others = near[neighbour]
            others |= around
            others -= {vertex, neighbour}
            heapq.heappush(queue, (len(others), neighbour))
    return choices


def _best(vertex: int, neighbours: tuple[int, ...], tables: Iterable[_Table]) -> tuple[_Table, list[bool]]:
    """What a vertex costs at best, and on which side; on the sink's where both cost the same."""
    order = (*neighbours, vertex)
    place = {one: bit for bit, one in enumerate(order)}
    costs = [0] * (1 << len(order))
    for table in tables:
        bits = [place[one] for one in table.vertices]
        for division in range(len(costs)):
            costs[division] += table.costs[sum((division >> bit & 1) << own for own, bit in enumerate(bits))]
    half = len(costs) // 2
    away, with_source = costs[:half], costs[half:]
    sides = [one < other for one, other in zip(with_source, away, strict=True)]
    return _Table(neighbours, list(map(min, away, with_source))), sides

"""The cheapest division of a network in two: Dinic's algorithm on integers, and another way where that takes long.

A network that comes from a graph of nodes is long and thin: a chain with branches that soon meet again. Flow along
shortest paths needs as many rounds there as paths have lengths, each over the whole network. The other way leaves out a
vertex with few neighbours, and what it costs at best goes over to them: a table with the cheapest cost for each way in
which the neighbours may be divided, as dynamic programming does it on a chain. So the work is linear in the vertices as
long as one has few neighbours.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

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


UNBOUNDED = 1 << 100

FEW_LOOKS = 16
"""How often each arc may be looked at before the network is taken for a long one."""

MANY_LOOKS = 1_024
"""How often if the other way fails too."""


class Network:
    """Vertices are numbers; `SOURCE` and `SINK` are there from the start.

    Attributes:
        looks: How many arcs have been looked at.
    """

    SOURCE = 0
    SINK = 1

    def __init__(self) -> None:
        self._arcs: list[list[int]] = [[], []]
        self._heads: list[int] = []
        self._room: list[int] = []
        self.looks = 0

    def vertex(self) -> int:
        """A new vertex."""
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, tail: int, head: int, cost: int) -> None:
        """Charge a cost where `tail` is on the source's side and `head` on the sink's."""
        self._arcs[tail].append(len(self._heads))
        self._heads.append(head)
        self._room.append(cost)
        self._arcs[head].append(len(self._heads))
        self._heads.append(tail)
        self._room.append(0)

    def source_side(self) -> frozenset[int] | None:
        """The vertices on the source's side of a cheapest cut; of all such cuts, the one with the fewest.

        Returns:
            None where it would take too long: the network is large, and nowhere thin.
        """
        side = self._fill(FEW_LOOKS)
        if side is None:  # what there is room for yet has the same cheapest cuts
            side = source_side(self._left(), self.SOURCE, self.SINK)
        return self._fill(MANY_LOOKS) if side is None else side

    def _left(self) -> Iterator[tuple[int, int, int]]:
        """The arcs on which there is room, backwards too."""
        return (
            (self._heads[arc ^ 1], head, room)
            for arc, (head, room) in enumerate(zip(self._heads, self._room, strict=True))
            if room
        )

    def _fill(self, most: int) -> frozenset[int] | None:
        """Push flow until there is no more way, or each arc has been looked at too often; what the source reaches."""
        most = self.looks + most * len(self._heads)
        while (levels := self._levels())[self.SINK] >= 0:
            if self.looks > most:
                return None
            self._saturate(levels)
        return frozenset(vertex for vertex, level in enumerate(levels) if level >= 0)

    def _levels(self) -> list[int]:
        levels = [-1] * len(self._arcs)
        levels[self.SOURCE] = 0
        queue = deque([self.SOURCE])
        while queue:
            at = queue.popleft()
            self.looks += len(self._arcs[at])
            for arc in self._arcs[at]:
                head = self._heads[arc]
                if self._room[arc] and levels[head] < 0:
                    levels[head] = levels[at] + 1
                    queue.append(head)
        return levels

    def _saturate(self, levels: list[int]) -> None:
        """Push flow along shortest paths until none is left."""
        following = [0] * len(self._arcs)
        path: list[int] = []
        at = self.SOURCE
        while True:
            self.looks += 1
            if at == self.SINK:
                self.looks += len(path)
                flow = min(self._room[arc] for arc in path)
                for arc in path:
                    self._room[arc] -= flow
                    self._room[arc ^ 1] += flow
                full = next(place for place, arc in enumerate(path) if not self._room[arc])
                at = self._heads[path[full] ^ 1]
                del path[full:]
                continue
            arcs = self._arcs[at]
            while following[at] < len(arcs):
                arc = arcs[following[at]]
                if self._room[arc] and levels[self._heads[arc]] == levels[at] + 1:
                    break
                following[at] += 1
            else:
                if at == self.SOURCE:
                    return
                levels[at] = -1
                at = self._heads[path.pop() ^ 1]
                continue
            path.append(arc)
            at = self._heads[arc]

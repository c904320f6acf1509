"""The cheapest division of a network in two: Dinic's algorithm on integers, and another way where that takes long."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ortopt.transpose import elimination

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
            side = elimination.source_side(self._left(), self.SOURCE, self.SINK)
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

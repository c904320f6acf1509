"""The layers that must stay in float32: found by bisection over the nodes, in the graph's order, fewest first.

What 16 bits cost is measured with the nodes up to some place in float32: the first place with which it is within the
tolerance stands behind a node that costs too much. That node stays in float32, and the search goes on with it until
the rest is within the tolerance. Where one node after the other makes little difference (an error that adds up), more
at a time stay; in the end those go that are not needed after all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

MAX_PROBES: Final = 96
"""How many models are measured at most; then all nodes up to the place that was found stay."""

_PROGRESS: Final = 0.5
"""What is left of an error where a node was worth keeping by itself."""

_SINGLE_OVERFLOWS: Final = 4
"""How many nodes that overflow are searched one by one."""

Node = TypeVar("Node")


@dataclass(frozen=True, slots=True)
class Kept(Generic[Node]):
    """What a search has found.

    Attributes:
        nodes: What stays in float32, in the graph's order.
        before: The error without.
        after: The error with it.
        probes: How many models were measured.
    """

    nodes: tuple[Node, ...]
    before: float
    after: float
    probes: int


class KeepListSearch(Generic[Node]):
    """One search.

    Args:
        error: The error where some nodes stay in float32.
        nodes: The nodes that could be of 16 bits, in the graph's order.
        tolerance: What the error may be.
        max_probes: How many models are measured at most.
    """

    def __init__(
        self,
        error: Callable[[Collection[Node]], float],
        nodes: Sequence[Node],
        tolerance: float,
        max_probes: int = MAX_PROBES,
    ) -> None:
        self._measure = error
        self._nodes = list(nodes)
        self._tolerance = tolerance
        self._max_probes = max_probes
        self._probes = 0
        self._blocks: list[range] = []

    def run(self) -> Kept[Node]:
        """Search; where not even float32 is within the tolerance, nothing is kept."""
        before = error = self._error(())
        if before <= self._tolerance:
            return self._kept(before, before)
        if self._error(range(len(self._nodes))) > self._tolerance:
            return self._kept(before, before)
        width = 1
        while error > self._tolerance:
            end = self._boundary()
            if self._probes >= self._max_probes:
                self._blocks.append(range(end))
                error = self._error(self._places())
                break
            self._blocks.append(range(max(0, end - width), end))
            now = self._error(self._places())
            is_progress = now <= error * _PROGRESS or (math.isinf(now) and len(self._blocks) < _SINGLE_OVERFLOWS)
            width, error = (1 if is_progress else 2 * width), now
        return self._kept(before, self._without_needless(error))

    def _kept(self, before: float, after: float) -> Kept[Node]:
        nodes = tuple(self._nodes[place] for place in sorted(self._places()))
        return Kept(nodes, before, after, self._probes)

    def _places(self) -> set[int]:
        return {place for block in self._blocks for place in block}

    def _error(self, places: Collection[int]) -> float:
        self._probes += 1
        return self._measure([self._nodes[place] for place in places])

    def _boundary(self) -> int:
        """How many nodes from the start, beside what is kept, make the rest good."""
        kept = self._places()
        bad, good = 0, len(self._nodes)
        while good - bad > 1:
            middle = (bad + good) // 2
            if self._error(kept.union(range(middle))) > self._tolerance:
                bad = middle
            else:
                good = middle
        return good

    def _without_needless(self, error: float) -> float:
        """Let go of what is not needed after all; the error then."""
        for block in [*self._blocks[:-1]]:
            if self._probes >= self._max_probes:
                break
            others = [other for other in self._blocks if other is not block]
            now = self._error({place for other in others for place in other})
            if now <= self._tolerance:
                self._blocks, error = others, now
        return error

"""A walk through a graph and those nested in it, and what is visible there: what stood before, here or around."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

import onnx_ir as ir

ItemT = TypeVar("ItemT")
SeenT = TypeVar("SeenT")


class NestedWalk(Generic[ItemT, SeenT]):
    """Visits the items of a graph and of those nested in it, which see what was entered before them, but not beside.

    Args:
        graph: The outermost graph.
        items: Gives the items of a graph in order, and the graphs nested in it where they are to be visited.

    Attributes:
        visible: By key, what has been entered for the graph that is visited and for those around it.
    """

    def __init__(self, graph: ir.Graph, items: Callable[[ir.Graph], Iterator[ItemT | ir.Graph]]) -> None:
        self.visible: dict[Hashable, SeenT] = {}
        self._items = items
        self._open: dict[ir.Graph, tuple[Iterator[ItemT | ir.Graph], list[Hashable]]] = {}
        self._begin(graph)

    def __iter__(self) -> Iterator[ItemT]:
        """The items, each graph's when its turn comes; what is entered meanwhile counts."""
        while self._open:
            graph = self._innermost
            items, entered = self._open[graph]
            item = next(items, None)
            if item is None:
                for key in entered:
                    self.visible.pop(key, None)
                del self._open[graph]
            elif type(item) is ir.Graph:  # to ask for the class of what is none takes long
                self._begin(item)
            else:
                yield item  # type: ignore[misc]

    def enter(self, key: Hashable, seen: SeenT, graph: ir.Graph | None = None) -> None:
        """Let something be visible until the walk leaves a graph.

        Args:
            key: What it is found by.
            seen: What is found.
            graph: The graph, which is open; None is the one that is visited.
        """
        self.visible[key] = seen
        self._open[self._innermost if graph is None else graph][1].append(key)

    def is_open(self, graph: object) -> bool:
        """Whether a graph is the one that is visited, or one around it."""
        return graph in self._open

    @property
    def _innermost(self) -> ir.Graph:
        return next(reversed(self._open))

    def _begin(self, graph: ir.Graph) -> None:
        self._open[graph] = (self._items(graph), [])

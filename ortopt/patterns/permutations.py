"""Permutations of axes, as exchanges of neighbouring groups: what ONNX Runtime's Transpose does fast.

Its kernel on the CPU has fast paths for one axis that moves; all other orders are copied element by element, or by what
stays together at the end, and one that moves may be disturbed by axes of size 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ortopt.graph import symbolic
from ortopt.graph.match import Dim, same_dim

Order: TypeAlias = tuple[int, ...]


class Exchange(NamedTuple):
    """Two neighbouring groups of axes that change places.

    Attributes:
        start: The first axis of the first group.
        middle: The first axis of the second group.
        end: The first axis behind it.
    """

    start: int
    middle: int
    end: int

    def of(self, order: Order) -> Order:
        """The order that comes of another one.

        Args:
            order: The order of the axes before.
        """
        start, middle, end = self
        return (*order[:start], *order[middle:end], *order[start:middle], *order[end:])


def reduced(shape: Sequence[Dim], order: Order) -> tuple[tuple[Dim, ...], Order]:
    """A transposition without axes of size 1, and with axes that stay together as one.

    Args:
        shape: What is transposed.
        order: The order of its axes.

    Returns:
        The dimensions that are transposed, and their order.
    """
    groups: list[list[int]] = []
    for axis in order:
        if same_dim(shape[axis], 1):
            continue
        if groups and _follows(groups[-1][-1], axis, shape):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    places = sorted(groups)
    dims = tuple(symbolic.product(shape[axis] for axis in group) for group in places)
    return dims, tuple(places.index(group) for group in groups)


def exchanges(order: Order, most: int) -> list[tuple[Exchange, ...]]:
    """The shortest ways to an order, each as exchanges one behind another; none if all are longer.

    Args:
        order: The order of the axes.
        most: How many exchanges there may be.
    """
    ways: list[tuple[tuple[Exchange, ...], Order]] = [((), tuple(range(len(order))))]
    if ways[0][1] == order:
        return [()]
    for _ in range(most):
        ways = [((*way, each), each.of(now)) for way, now in ways for each in _possible(len(order))]
        ends = [way for way, now in ways if now == order]
        if ends:
            return ends
    return []


def moves_one_axis(order: Order) -> bool:
    """Whether one axis moves, and all others keep their order; or none does.

    Args:
        order: The order of the axes.
    """
    for axis in order:
        others = [each for each in order if each != axis]
        if others == sorted(others):
            return True
    return len(order) == 0


def moves_elements(shape: Sequence[Dim], order: Order) -> bool:
    """Whether ONNX Runtime's Transpose copies element by element.

    Args:
        shape: What is transposed.
        order: The order of its axes.
    """
    is_last = order[-1:] == (len(order) - 1,) and not same_dim(shape[-1], 1)
    return not is_last and not moves_one_axis(order) and len(reduced(shape, order)[0]) > 1


def hides_exchange(shape: Sequence[Dim], order: Order) -> bool:
    """Whether axes of size 1 keep ONNX Runtime's Transpose from the fast path that it has without them.

    Args:
        shape: What is transposed.
        order: The order of its axes.
    """
    larger = tuple(axis for axis in order if not same_dim(shape[axis], 1))
    return moves_elements(shape, order) and moves_one_axis(larger)


def _follows(axis: int, after: int, shape: Sequence[Dim]) -> bool:
    """Whether an axis comes right behind another one, but for axes of size 1."""
    return axis < after and all(same_dim(dim, 1) for dim in shape[axis + 1 : after])


def _possible(count: int) -> list[Exchange]:
    """All exchanges of so many axes."""
    return [Exchange(*cuts) for cuts in itertools.combinations(range(count + 1), 3)]

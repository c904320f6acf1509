"""Permutations of axes, and what they do to sets of axes.

A value ``v`` has the layout ``L`` relative to another value ``w`` where ``v = Transpose(w, perm=L)``: axis ``j`` of
``v`` is axis ``L[j]`` of ``w``. The identity, at any rank, is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Perm: TypeAlias = tuple[int, ...]
Layout: TypeAlias = Perm | None


def normal(perm: Iterable[int]) -> Layout:
    """A permutation as a layout: None if it is the identity."""
    axes = tuple(perm)
    return None if axes == tuple(range(len(axes))) else axes


def inverse(layout: Layout) -> Layout:
    """The layout that takes a layout back."""
    if layout is None:
        return None
    back = [0] * len(layout)
    for position, axis in enumerate(layout):
        back[axis] = position
    return tuple(back)


def compose(first: Layout, second: Layout) -> Layout:
    """The one Transpose that does what two do: ``Transpose(Transpose(x, first), second)``."""
    if first is None:
        return second
    if second is None:
        return first
    return normal(first[axis] for axis in second)


def without_axes(perm: Perm, axes: Iterable[int]) -> Perm:
    """What is left of a permutation when some axes of the transposed value are dropped on both sides.

    Args:
        perm: A permutation.
        axes: Axes of the transposed value.
    """
    dropped = set(axes)
    kept = [to for at, to in enumerate(perm) if at not in dropped]
    places = {to: place for place, to in enumerate(sorted(kept))}
    return tuple(places[to] for to in kept)


def with_axes(perm: Perm, axes: Sequence[int]) -> Perm:
    """A permutation with some axes added to the transposed value; they stand at the same places on both sides.

    Args:
        perm: A permutation.
        axes: Where the new axes stand in the result.
    """
    added = set(axes)
    rest = [at for at in range(len(perm) + len(added)) if at not in added]
    layout = list(range(len(perm) + len(added)))
    for place, to in zip(rest, perm, strict=True):
        layout[place] = rest[to]
    return tuple(layout)


def reordered(items: Sequence[int], perm: Perm) -> tuple[int, ...]:
    """A list with one item for each axis of a value, for the axes of what it is the transposed of.

    Args:
        items: An item for each axis of ``v``.
        perm: The layout of ``v`` relative to ``w``.

    Returns:
        An item for each axis of ``w``.
    """
    found = [0] * len(perm)
    for axis, to in enumerate(perm):
        found[to] = items[axis]
    return tuple(found)

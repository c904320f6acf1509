"""What a Reshape, a Flatten, or an Unsqueeze has to say for a value to get other dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ortopt.graph import symbolic
from ortopt.graph.match import Dim, same_dim

COPY: Final = 0
"""What a Reshape's target says for the input's own dimension."""

INFER: Final = -1
"""What a Reshape's target says for the dimension that is left."""


def target_of(source: Sequence[Dim] | None, result: Sequence[Dim]) -> list[int]:
    """For each dimension a number, `COPY` or `INFER`; several may be to infer, and a number that is 0 is.

    Args:
        source: The dimensions before, None where they are not known.
        result: The dimensions wanted.
    """
    own = () if source is None else source
    target = []
    for axis, dim in enumerate(result):
        if isinstance(dim, int) and dim > 0:
            target.append(dim)
        else:
            target.append(COPY if axis < len(own) and same_dim(dim, own[axis]) else INFER)
    return target


def flatten_axis(source: Sequence[Dim] | None, result: Sequence[Dim]) -> int | None:
    """The axis at which a Flatten gives dimensions; unlike a Reshape that infers one it can beside a 0, too.

    Args:
        source: The dimensions before, None where they are not known.
        result: The dimensions wanted.
    """
    if source is None or len(result) != 2:
        return None
    for axis in range(len(source) + 1):
        if symbolic.same_shape((symbolic.product(source[:axis]), symbolic.product(source[axis:])), result):
            return axis
    return None


def ones_beside(few: Sequence[Dim], many: Sequence[Dim]) -> tuple[int, ...] | None:
    """The axes of size 1 that a shape has more than another one; None if anything else is different.

    Args:
        few: The shape with fewer axes, or as many.
        many: The other one.
    """
    ones = []
    place = 0
    for axis, dim in enumerate(many):
        if place < len(few) and same_dim(few[place], dim):
            place += 1
        elif same_dim(dim, 1):
            ones.append(axis)
        else:
            return None
    return tuple(ones) if place == len(few) else None

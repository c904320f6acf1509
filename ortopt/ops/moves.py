"""Ops that move elements: Transpose, Pad, Resize, Slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.graph import symbolic
from ortopt.graph.detached import constant
from ortopt.graph.facts import contents
from ortopt.graph.integer_ranges import LARGEST, is_endless
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    dims,
    inputs,
    need,
    need_known,
    opset,
    optional,
    rank,
    same_dim,
    shape_of,
    static_dims,
)
from ortopt.ops.reader import Reader
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM


class Transpose(Reader):
    """A Transpose."""

    __slots__ = ()

    @property
    def order(self) -> tuple[int, ...]:
        """The axes of the input in the order of the output: reversed where none is named.

        Raises:
            Refusal: If it is not known, or no permutation.
        """
        (x,) = inputs(self.node, 1)
        shape, named = shape_of(x), self._given("perm")
        return self.order_of(len(named) if shape is None and named else rank(x))

    def order_of(self, size: int) -> tuple[int, ...]:
        """The same for an input of some rank.

        Args:
            size: The rank.

        Raises:
            Refusal: If it is no permutation.
        """
        order = self._given("perm") or tuple(reversed(range(size)))
        need(sorted(order) == list(range(size)), "it is no permutation", self.node)
        return order


class Pad(Reader):
    """A Pad."""

    __slots__ = ()

    @property
    def mode(self) -> str:
        """What it pads with."""
        return attribute(self.node, "mode", "constant")

    @property
    def amounts(self) -> tuple[int, ...]:
        """How much is added before each axis, then behind each; negative where elements are removed.

        Raises:
            Refusal: If it is not known.
        """
        amounts, stated = self._listed(1, "paddings") or self._given("pads") or (), self._listed(3, "paddings")
        if stated is None:
            return amounts
        size = rank(inputs(self.node, 1)[0])
        axes = self._from_front(stated, size)
        need(2 * len(axes) == len(amounts), "the paddings do not fit one another", self.node)
        need(len(set(axes)) == len(axes), "an axis is named twice", self.node)
        behind = len(axes)
        full = [0] * 2 * size
        for index, axis in enumerate(axes):
            full[axis], full[size + axis] = amounts[index], amounts[behind + index]
        return tuple(full)


class Resize(Reader):
    """A Resize."""

    __slots__ = ()

    @property
    def names_axes(self) -> bool:
        """Whether scales or sizes are those of some axes only."""
        return bool(self._given("axes"))

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that scales or sizes are for, counted from the front: all where none are named.

        Raises:
            Refusal: If the rank is not known, or one is out of range.
        """
        size = rank(inputs(self.node, 1)[0])
        return self._from_front(self._given("axes") or tuple(range(size)), size)


_INPUTS: Final = {"starts": 1, "ends": 2, "axes": 3, "steps": 4}


class Cut(NamedTuple):
    """The bounds of a Slice along one axis, as they are written; the axis is counted from the front."""

    axis: int
    start: Dim
    end: Dim
    step: Dim

    def is_whole(self, size: Dim) -> bool:
        """Whether it takes an axis of a size whole, in its order."""
        if not same_dim(self.step, 1) or not same_dim(self.start, 0):
            return False
        beyond = isinstance(self.end, int) and isinstance(size, int) and self.end >= size
        return beyond or is_endless(self.end) or same_dim(self.end, size)


class Slice(Reader):
    """A Slice."""

    __slots__ = ()

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes in the order of the bounds, counted from the front: the first ones where none are named.

        Raises:
            Refusal: If they are not known, or one is named twice.
        """
        size = rank(inputs(self.node, 1)[0])
        named = self._list("axes") or range(self._count())
        numbers = tuple(axis for axis in named if isinstance(axis, int))
        need(len(numbers) == len(named), "an axis is not known", self.node)
        axes = self._from_front(numbers, size)
        need(len(set(axes)) == len(axes), "an axis is named twice", self.node)
        return axes

    def _count(self) -> int:
        """How many starts there are."""
        starts = optional(self.node, _INPUTS["starts"])
        if starts is None:
            return len(self._list("starts") or ())
        return static_dims(starts, 1)[0]

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The bounds of a Slice, without the axes that are taken whole.

        Raises:
            Refusal: If a list of bounds, or an axis, is not known.
        """
        shape = shape_of(inputs(self.node, 1)[0])
        return tuple(cut for cut in self.bounds if shape is None or not cut.is_whole(shape[cut.axis]))

    @property
    def bounds(self) -> tuple[Cut, ...]:
        """The bounds of a Slice, axis by axis.

        Raises:
            Refusal: If a list of bounds, or an axis, is not known.
        """
        starts, ends = self._list("starts"), self._list("ends")
        if starts is None or ends is None:
            raise Refusal("it has no bounds", self.node)
        axes = self.axes
        steps = self._list("steps") or (1,) * len(starts)
        need(len(starts) == len(ends) == len(axes) == len(steps), "the bounds do not fit one another", self.node)
        return tuple(map(Cut, axes, starts, ends, steps))

    @property
    def block(self) -> tuple[int, Dim, Dim]:
        """The axis of a Slice along one axis with steps of 1, its first element, and the one after its last.

        Both are counted from the front; they are numbers where the dimension is one.

        Raises:
            Refusal: If it takes anything else, or what it takes is not known.
        """
        along = self.cuts
        need(len(along) == 1, "it is along several axes", self.node)
        ((axis, start, end, step),) = along
        need(same_dim(step, 1), "its steps are not 1", self.node)
        size = dims(inputs(self.node, 1)[0])[axis]
        return axis, _from_front(start, size, self.node), size if is_endless(end) else _from_front(end, size, self.node)

    def _list(self, name: str) -> tuple[Dim, ...] | None:
        """Bounds, axes or steps: an attribute before opset 10, an input since; None where they are left out."""
        if opset(self.node) < BOUNDS_ARE_INPUTS_FROM["Slice"]:
            listed: tuple[int, ...] | None = attribute(self.node, name, None)
            return listed
        value = optional(self.node, _INPUTS[name])
        if value is None:
            return None
        return need_known(contents(value), f"its {name} are not known", value)


def _from_front(bound: Dim, size: Dim, node: ir.Node) -> Dim:
    """A bound counted from the front, as a Slice with steps of 1 reads it: within 0 and the dimension."""
    if isinstance(bound, int):
        if bound >= LARGEST:
            return size
        if isinstance(size, int):
            return min(max(bound + size if bound < 0 else bound, 0), size)
        return symbolic.add(size, bound) if bound < 0 else bound
    need(symbolic.at_least(bound, 0), "a bound may be negative", node)
    return bound


def slice_node(x: ir.Value, taken: Sequence[tuple[int, int, int, int]], version: int) -> ir.Node:
    """A Slice along axes, each with its start, end and step.

    Args:
        x: What to slice.
        taken: Axis, start, end and step, one for each axis; before opset 10 steps must be 1.
        version: The opset of the graph.
    """
    axes, starts, ends, steps = ([part[column] for part in taken] for column in range(4))
    if version < BOUNDS_ARE_INPUTS_FROM["Slice"]:
        return ir.node("Slice", [x], {"axes": axes, "starts": starts, "ends": ends})
    lists = [starts, ends, axes] + ([steps] if any(step != 1 for step in steps) else [])
    return ir.node("Slice", [x, *(constant(np.array(numbers, np.int64)) for numbers in lists)])


ENDS: Final = (2**31 - 1, 2**63 - 1)
"""As an end these mean "to the end", in the direction of the step."""


def taken(size: int, start: int, end: int, step: int) -> range:
    """The places of the elements.

    Going backwards, a start before the first element counts as the first one: numpy takes nothing there.

    Args:
        size: The dimension.
        start: Where to begin; counted from the end where it is negative.
        end: Where to stop before; counted from the end where it is negative.
        step: How far apart; not 0.
    """
    if not size:
        return range(0)
    first = start + size if start < 0 else start
    last = end + size if end < 0 else end
    if step > 0:
        return range(min(max(first, 0), size), size if end in ENDS else min(max(last, 0), size), step)
    return range(min(max(first, 0), size - 1), -1 if end in ENDS else min(max(last, -1), size), step)

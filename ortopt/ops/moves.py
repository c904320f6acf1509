"""Ops that move elements: Transpose, Pad, Resize."""

from __future__ import annotations

from ortopt.graph.match import attribute, inputs, need, rank, shape_of
from ortopt.ops.reader import Reader


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

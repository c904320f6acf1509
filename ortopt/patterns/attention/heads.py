"""Queries, keys and values: from the operands of products to heads, and to what these were split from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, is_op, is_used_once, need
from ortopt.patterns.attention.scores import factor
from ortopt.patterns.attention.sizes import NonemptyBatch
from ortopt.views.axes import Axis, Group, View, above, leaves, unrepeated
from ortopt.views.layouts import Plan, build, plan, size_along

HEADS_FIRST = (0, 2, 1, 3)
"""The permutation between [batch, length, heads, size] and [batch, heads, length, size], both ways."""

_LONGEST = 16


class Roles(Struct, frozen=True, eq=False):
    """Which axes are what.

    Attributes:
        batch: The axes of the batch.
        length: The axis of positions.
        heads: The axes of heads.
        size: The axis of a head's elements.
    """

    batch: Group
    length: Axis
    heads: Group
    size: Axis

    @property
    def merged(self) -> tuple[Group, ...]:
        """The layout [batch, length, heads · size]."""
        return leaves(self.batch), leaves((self.length,)), leaves((*self.heads, self.size))

    @property
    def columns(self) -> tuple[Group, ...]:
        """The layout [batch, heads, length, size]."""
        return leaves(self.batch), leaves(self.heads), leaves((self.length,)), leaves((self.size,))


@dataclass(frozen=True, slots=True)
class Heads:
    """A tensor of heads.

    Attributes:
        views: Values that hold the same elements, with the axes of their dimensions.
        roles: Which axis is what.
        batch: The batch size.
        length: How many positions.
        count: How many heads.
        size: Elements of a head.
    """

    views: tuple[View, ...]
    roles: Roles
    batch: Dim
    length: Dim
    count: int
    size: int
    _plans: dict[tuple[Group, ...], Plan] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def columns(self) -> ir.Value | None:
        """The value with dimensions [batch, heads, length, size], or None."""
        return next((view.value for view in self.views if view.groups == self.roles.columns), None)

    @property
    def values(self) -> tuple[ir.Value, ...]:
        """All values that hold the heads, as far as they are known."""
        return tuple(view.value for view in self.views)

    def merged(self) -> ir.Value:
        """The value with dimensions [batch, length, heads · size]."""
        return build(self.plan(self.roles.merged))

    def heads_first(self) -> ir.Value:
        """The value with dimensions [batch, heads, length, size]."""
        return build(self.plan(self.roles.columns))

    def plan(self, layout: tuple[Group, ...]) -> Plan:
        """How the heads get into a layout with the least work.

        Raises:
            Refusal: If they do not.
        """
        if layout not in self._plans:
            _, self._plans[layout] = cheapest((view, layout) for view in self.views)
        return self._plans[layout]

    def check_layout(self, *, flat: bool) -> None:
        """Refuse heads that cannot be had side by side, or first.

        Raises:
            Refusal: The reason.
        """
        self.plan(self.roles.merged if flat else self.roles.columns)

    def positions(self) -> ir.Value:
        """How many positions there are, as a vector of one element.

        Raises:
            Refusal: If it is not known, and no dimension of a value.
        """
        measured = self._measured()
        if measured is None:
            assert isinstance(self.length, int)
            return constant([self.length])
        value, place = measured
        return size_along(value, place)

    def check_positions(self) -> None:
        """Refuse heads whose positions cannot be counted.

        Raises:
            Refusal: If `positions` has no answer.
        """
        self._measured()

    def _measured(self) -> tuple[ir.Value, int] | None:
        """A value that has the length as a dimension, and which that is; None where there is none, and it is known."""
        for view in self.views:
            for place, group in enumerate(view.groups):
                if group == leaves((self.roles.length,)):
                    return view.value, place
        need(isinstance(self.length, int), "the length is no dimension of a value", self.views[0].value)
        return None

    @property
    def is_flat(self) -> bool:
        """Whether the heads can be had side by side without moving any: at most, positions with all their heads."""
        try:
            merged = self.plan(self.roles.merged)
        except Refusal:
            return False
        return merged.perm is None or merged.together >= self.count * self.size


def cheapest(wanted: Iterable[tuple[View, tuple[Group, ...]]]) -> tuple[int, Plan]:
    """The plan with the fewest Transposes, then Reshapes; of equal ones the first. And which it is.

    Args:
        wanted: Views, and the layouts that they are to get into.

    Raises:
        Refusal: If there is none.
    """
    plans: dict[int, Plan] = {}
    refusal = Refusal("the axes are others")
    for place, (view, layout) in enumerate(wanted):
        try:
            plans[place] = plan(view, layout)
        except Refusal as found:
            refusal = found
    if not plans:
        raise refusal
    return min(plans.items(), key=lambda one: one[1].cost)


def heads_from(views: Sequence[View], roles: Roles, *, batch: Dim, length: Dim) -> Heads:
    """Heads whose axes are known.

    Args:
        views: Values that hold them.
        roles: Which axis is what.
        batch: The batch size.
        length: How many positions.

    Raises:
        Refusal: If number or size of the heads are not known.
    """
    count, size = symbolic.product(one.size for one in leaves(roles.heads)), roles.size.size
    if not isinstance(count, int) or not isinstance(size, int):
        raise Refusal("the heads have no known number and size", views[0].value)
    return Heads(tuple(views), roles, batch, length, count, size)


class Operand(Struct, frozen=True):
    """An operand of a product.

    Attributes:
        views: Values that hold its elements, the operand itself first.
        single: Values that hold them before each was repeated for a group; those of `views` that nothing repeats, too.
        scale: What it was multiplied by.
    """

    views: tuple[View, ...]
    single: tuple[View, ...]
    scale: float


def operand(value: ir.Value, parts: tuple[Group, ...], shared: Group, batch: NonemptyBatch, *, scaled: bool) -> Operand:
    """Follow an operand of a product.

    Args:
        value: The operand.
        parts: The axes of its dimensions.
        shared: The axes that all operands share: where one of them is 0, the block gives nothing.
        batch: Tells the dimensions of values.
        scaled: Whether factors are taken out of it.
    """
    views, scale = _followed(View(value, parts), shared, batch, scaled=scaled)
    single = views
    while (before := unrepeated(single[-1], batch.shape_of)) is not None:
        single, _ = _followed(before, shared, batch, scaled=False)
    return Operand(tuple(views), tuple(single), scale)


def _followed(view: View, shared: Group, batch: NonemptyBatch, *, scaled: bool) -> tuple[list[View], float]:
    """The views from one upwards, and the product of the factors on the way."""
    views, scale = [view], 1.0
    _learn_if_any(view, shared)
    while len(views) < _LONGEST:
        following = above(views[-1], batch.shape_of) or _above_if_any(views[-1], shared, batch)
        if following is None and scaled:
            unscaled = _unscaled(views[-1], batch)
            if unscaled is not None:
                following, number = unscaled
                scale *= number
                views = []  # what was read before is another number
        if following is None:
            break
        _learn_if_any(following, shared)
        views.append(following)
    return views, scale


def _learn_if_any(view: View, among: Group) -> None:
    """Note what sizes are where none of some axes is 0: else the block gives nothing, whatever they are."""
    shared = leaves(among)
    names = [name for one in shared for size in one.sizes if (name := _symbol(size)) is not None]
    forth = {name: symbolic.add(symbolic.symbol(name), 1) for name in names}
    back = {name: symbolic.sub(symbolic.symbol(name), 1) for name in names}
    for one in view.axes:
        for size in () if one in shared else tuple(one.sizes):
            if not isinstance(size, int) and symbolic.symbols(size).intersection(names):
                one.learn(symbolic.substitute(symbolic.substitute(size, forth), back))


def _symbol(size: Dim) -> str | None:
    """The name of a size that is a symbol."""
    names = symbolic.symbols(size)
    return next(iter(names)) if len(names) == 1 and symbolic.equal(size, symbolic.symbol(next(iter(names)))) else None


def _above_if_any(view: View, shared: Group, batch: NonemptyBatch) -> View | None:
    """As `above`, where one size is known only if there is something at all: a Reshape that cannot be followed else.

    With a batch that is not empty, the elements before and after tell the size; with an empty one, nobody reads it.
    """
    node = view.value.producer()
    if not is_op(node, "Reshape") or node.inputs[0] is None:
        return None
    shape = batch.shape_of(node.inputs[0])
    own = leaves(shared)
    strange = [one for one in view.axes if not isinstance(one.size, int) and one not in own]
    others = [one for one in view.axes if one not in strange]
    if shape is None or len(strange) != 1:
        return None
    size = symbolic.quotient_exact(symbolic.product(shape), symbolic.product(one.size for one in others))
    if size is None or symbolic.is_invented(size):
        return None
    strange[0].learn(size)
    return above(view, batch.shape_of)


def _unscaled(view: View, batch: NonemptyBatch) -> tuple[View, float] | None:
    """A value before it was multiplied by a number, and the number."""
    node = view.value.producer()
    if not is_op(node, "Mul", "Div") or not is_used_once(view.value):
        return None
    try:
        source, number = factor(node)
    except Refusal:
        return None
    shape = batch.shape_of(source)
    return (View(source, view.parts), number) if shape is not None and len(shape) == len(view.parts) else None

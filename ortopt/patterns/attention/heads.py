"""How queries, keys and values are split into heads, and what they are before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, dims, inputs, is_op, need, same_dim
from ortopt.views.axes import Axis, Group, View, leaves
from ortopt.views.layouts import Plan, build, plan, size_along

HEADS_FIRST = (0, 2, 1, 3)
"""The permutation between [batch, length, heads, size] and [batch, heads, length, size], both ways."""

TRANSPOSED_ROWS = (0, 2, 3, 1)
"""The permutation from [batch, length, heads, size] to [batch, heads, size, length]."""


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
    def rows(self) -> tuple[Group, ...]:
        """The layout [batch, length, heads, size]."""
        return leaves(self.batch), leaves((self.length,)), leaves(self.heads), leaves((self.size,))

    @property
    def columns(self) -> tuple[Group, ...]:
        """The layout [batch, heads, length, size]."""
        return leaves(self.batch), leaves(self.heads), leaves((self.length,)), leaves((self.size,))


@dataclass(frozen=True, slots=True)
class Heads:
    """A tensor of heads in the layout that it is computed in; at least one of both is known.

    Attributes:
        rows: The value with dimensions [batch, length, heads, size], or None.
        columns: The value with dimensions [batch, heads, length, size], or None.
        batch: The batch size.
        length: How many positions.
        count: How many heads.
        size: Elements of a head.
        views: Values that hold the same elements, with the axes of their dimensions; none if only the layout counts.
        roles: Which axis is what in `views`.
    """

    rows: ir.Value | None
    columns: ir.Value | None
    batch: Dim
    length: Dim
    count: int
    size: int
    views: tuple[View, ...] = ()
    roles: Roles | None = None
    _plans: dict[tuple[Group, ...], Plan] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def any(self) -> ir.Value:
        """The value in the layout that it is computed in."""
        value = self.columns if self.rows is None else self.rows
        assert value is not None
        return value

    @property
    def values(self) -> tuple[ir.Value, ...]:
        """All values that hold the heads, as far as they are known."""
        known = (self.rows, self.columns, *(view.value for view in self.views))
        return tuple(dict.fromkeys(value for value in known if value is not None))

    def merged(self) -> ir.Value:
        """The value with dimensions [batch, length, heads · size]."""
        if self.roles is not None:
            return build(self.plan(self.roles.merged))
        width = self.count * self.size
        if self.rows is None:
            rows = ir.node("Transpose", [self.columns], {"perm": HEADS_FIRST}).outputs[0]
            return ir.node("Reshape", [rows, constant([0, 0, width])]).outputs[0]
        node = self.rows.producer()
        if is_op(node, "Reshape"):
            assert node is not None
            source = node.inputs[0]
            assert source is not None
            if _has_shape(source, (self.batch, self.length, width)):
                return source
        return ir.node("Reshape", [self.rows, constant([0, 0, width])]).outputs[0]

    def heads_first(self) -> ir.Value:
        """The value with dimensions [batch, heads, length, size]."""
        if self.roles is not None:
            return build(self.plan(self.roles.columns))
        if self.columns is not None:
            return self.columns
        return ir.node("Transpose", [self.rows], {"perm": HEADS_FIRST}).outputs[0]

    def plan(self, layout: tuple[Group, ...]) -> Plan:
        """How the heads get into a layout with the least work.

        Raises:
            Refusal: If they do not.
        """
        if layout not in self._plans:
            self._plans[layout] = cheapest(self.views, layout)
        return self._plans[layout]

    def check_layout(self, *, flat: bool) -> None:
        """Refuse heads that cannot be had side by side, or first.

        Raises:
            Refusal: The reason.
        """
        if self.roles is not None:
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
        if self.roles is None:
            return self.any, 1 if self.columns is None else 2
        for view in self.views:
            for place, group in enumerate(view.groups):
                if group == leaves((self.roles.length,)):
                    return view.value, place
        need(isinstance(self.length, int), "the length is no dimension of a value", self.views[0].value)
        return None

    @property
    def is_flat(self) -> bool:
        """Whether the heads can be had side by side without moving any."""
        if self.roles is None:
            return self.rows is not None
        try:
            return self.plan(self.roles.merged).perm is None
        except Refusal:
            return False


def cheapest(views: Sequence[View], layout: tuple[Group, ...]) -> Plan:
    """The plan with the fewest Transposes, then Reshapes; of equal ones that of the first value.

    Raises:
        Refusal: If there is none.
    """
    plans = []
    refusal = Refusal("the axes are others", *[view.value for view in views[:1]])
    for view in views:
        try:
            plans.append(plan(view, layout))
        except Refusal as found:
            refusal = found
    if not plans:
        raise refusal
    return min(plans, key=lambda one: one.cost)


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
    about = views[0].value
    need(isinstance(count, int) and isinstance(size, int), "the heads have no known number and size", about)
    assert isinstance(count, int)
    assert isinstance(size, int)
    rows = next((view.value for view in views if view.groups == roles.rows), None)
    columns = next((view.value for view in views if view.groups == roles.columns), None)
    return Heads(rows, columns, batch, length, count, size, tuple(views), roles)


def heads_of(value: ir.Value) -> Heads:
    """The heads of a value with dimensions [batch, heads, length, size].

    Raises:
        Refusal: If it has other dimensions, or heads of unknown number or size.
    """
    batch, count, length, size = dims(value, 4)
    need(isinstance(count, int) and isinstance(size, int), "the heads have no known number and size", value)
    assert isinstance(count, int)
    assert isinstance(size, int)
    return Heads(_permuted(value, HEADS_FIRST), value, batch, length, count, size)


def heads_of_transposed(value: ir.Value) -> Heads:
    """The heads of a value with dimensions [batch, heads, size, length], as a product of queries and keys reads keys.

    Raises:
        Refusal: If it has other dimensions, heads of unknown number or size, or comes from no Transpose.
    """
    batch, count, size, length = dims(value, 4)
    need(isinstance(count, int) and isinstance(size, int), "the heads have no known number and size", value)
    assert isinstance(count, int)
    assert isinstance(size, int)
    rows = _permuted(value, TRANSPOSED_ROWS)
    if rows is not None:
        return Heads(rows, None, batch, length, count, size)
    columns = _permuted(value, (0, 1, 3, 2))
    if columns is None:
        raise Refusal("the keys are not transposed", value)
    return Heads(_permuted(columns, HEADS_FIRST), columns, batch, length, count, size)


def ungrouped(heads: Heads) -> Heads:
    """The key or value heads before each was repeated for its group of query heads; the heads themselves if none was.

    Repeated is: ``[batch, n, length, size]`` by Unsqueeze, Expand and Reshape to ``[batch, n · group, length, size]``.
    """
    try:
        return _ungrouped(heads)
    except Refusal:
        return heads


def _ungrouped(heads: Heads) -> Heads:
    joined = None if heads.columns is None else heads.columns.producer()
    need(is_op(joined, "Reshape"), "no Reshape joins groups")
    assert joined is not None
    repeated, _ = inputs(joined, 2)
    expand = repeated.producer()
    need(is_op(expand, "Expand"), "no Expand repeats heads", repeated)
    assert expand is not None
    single = expand.inputs[0]
    unsqueeze = None if single is None else single.producer()
    need(is_op(unsqueeze, "Unsqueeze"), "no Unsqueeze makes room for a group", single)
    assert unsqueeze is not None
    need(ops.Unsqueeze(unsqueeze).axes == (2,), "the group is not the third dimension", single)
    source = unsqueeze.inputs[0]
    assert source is not None
    original = heads_of(source)
    batch, count, group, length, size = dims(repeated, 5)
    need(
        isinstance(group, int)
        and count == original.count
        and size == original.size == heads.size
        and original.count * group == heads.count
        and same_dim(batch, original.batch)
        and same_dim(length, original.length)
        and same_dim(batch, heads.batch)
        and same_dim(length, heads.length),
        "the heads are not repeated one by one",
        repeated,
    )
    return original


def _permuted(value: ir.Value, perm: tuple[int, ...]) -> ir.Value | None:
    """What a Transpose by this permutation made the value of; None if there is none."""
    node = value.producer()
    if not is_op(node, "Transpose"):
        return None
    assert node is not None
    return node.inputs[0] if ops.Transpose(node).order == perm else None


def _has_shape(value: ir.Value, shape: tuple[Dim, ...]) -> bool:
    try:
        own = dims(value, len(shape))
    except Refusal:
        return False
    return all(map(same_dim, own, shape))

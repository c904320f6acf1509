"""A value in another layout: its axes in a given order and in given dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import onnx_ir as ir
from msgspec import Struct, structs

from ortopt import ops
from ortopt.graph import facts, scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, need, need_known
from ortopt.semantics.opset_changes import RESHAPE_ALLOWS_ZERO_FROM
from ortopt.views.axes import Axis, Group, View, leaves, size_of

NODES_OF_SIZES = 3
"""What it takes at least to compute the target of a Reshape."""


class Plan(Struct, frozen=True):
    """How a value gets into a layout.

    Attributes:
        view: The value.
        split: The dimensions that it is split into first, or None.
        perm: How these are transposed, or None.
        joined: The dimensions that these are joined to, or None.
        measures: Other values, which have sizes that the value does not have alone.
        graph: The graph of the value that it was made for; one that is put in its place has none yet.
    """

    view: View
    split: tuple[Group, ...] | None
    perm: tuple[int, ...] | None
    joined: tuple[Group, ...] | None
    measures: tuple[View, ...] = ()
    graph: ir.Graph | None = None

    @property
    def version(self) -> int:
        """The opset of ai.onnx where the nodes will stand."""
        assert self.graph is not None
        return scope.of(self.graph).opset_imports[""]

    @property
    def cost(self) -> tuple[int, int]:
        """How many Transposes and how many Reshapes it takes."""
        return int(self.perm is not None), (self.split is not None) + (self.joined is not None)

    @property
    def moved(self) -> tuple[Dim, ...]:
        """The dimensions that are transposed."""
        return () if self.perm is None else tuple(map(size_of, self.view.groups if self.split is None else self.split))

    @property
    def keeps_last(self) -> bool:
        """Whether it transposes, and what is last stays there."""
        return self.perm is not None and self.perm[-1:] == (len(self.perm) - 1,)

    @property
    def together(self) -> int:
        """How many elements at least stay behind one another where it transposes."""
        last = self.moved[-1] if self.keeps_last else 1
        return last if isinstance(last, int) else 1

    @property
    def nodes(self) -> int:
        """How many nodes it takes, or about that where sizes are computed."""
        return int(self.perm is not None) + sum(_count(self, *pair) for pair in _reshapes(self))


def plan(
    view: View,
    layout: Sequence[Group],
    measures: Sequence[View] = (),
    *,
    graph: ir.Graph | None = None,
    joins: bool = False,
) -> Plan:
    """How a value gets into a layout.

    Args:
        view: Where the axes are in the value.
        layout: The axes of each dimension wanted.
        measures: Other values, for sizes that the value does not have alone.
        graph: The graph where it gets there, where that is not the graph of the value.
        joins: Whether axes that stay side by side are one for the Transpose, also across dimensions that are split or
            joined anyway.

    Raises:
        Refusal: If the value has other axes, or the sizes for a Reshape cannot be had.
    """
    wanted = tuple(leaves(group) for group in layout)
    have = view.groups
    if graph is None and isinstance(view.value.graph, ir.Graph):
        graph = view.value.graph
    if have == wanted:
        return Plan(view, None, None, None, graph=graph)
    need(graph is not None, "the value is in no graph", view.value)
    flat = [one for group in wanted for one in group]
    need(set(view.axes) == set(flat), "the axes are others", view.value)
    if list(view.axes) == flat:
        return _checked(Plan(view, None, None, wanted, tuple(measures), graph))
    perm = _with_its_ones(have, wanted)
    if perm is not None:
        return Plan(view, None, perm, None, graph=graph)
    made = _transposed(view, _units(have, wanted), wanted, graph)
    if joins and made.split is not None:
        whole: Sequence[Group] = wanted if made.joined is None else [tuple(flat)]
        made = _transposed(view, _units([view.axes], whole), wanted, graph)
    return _checked(structs.replace(made, measures=tuple(measures)))


def _transposed(view: View, units: Sequence[Group], wanted: tuple[Group, ...], graph: ir.Graph | None) -> Plan:
    """How a value gets into a layout if some units of its axes are transposed."""
    flat = [one for group in wanted for one in group]
    order = sorted(range(len(units)), key=lambda index: flat.index(units[index][0]))
    moved = tuple(units[index] for index in order)
    split = None if tuple(units) == view.groups else tuple(units)
    joined = None if moved == wanted else wanted
    return Plan(view, split, tuple(order), joined, (), graph)


def _with_its_ones(have: Sequence[Group], wanted: Sequence[Group]) -> tuple[int, ...] | None:
    """The order of the dimensions as they are that gives others, those of 1 among them; None if there is none."""
    left = list(enumerate(have))
    order = []
    for group in wanted:
        found = next((place for place, (_, own) in enumerate(left) if own == group), None)
        if found is None:
            return None
        order.append(left.pop(found)[0])
    return None if left else tuple(order)


def _units(have: Sequence[Group], wanted: Sequence[Group]) -> list[Group]:
    """Runs of axes that are side by side, in one dimension, before and after."""
    following = {a: b for group in wanted for a, b in pairwise(group)}
    units: list[Group] = []
    for group in have:
        run: list[Axis] = []
        for one in group:
            if run and following.get(run[-1]) is not one:
                units.append(tuple(run))
                run = []
            run.append(one)
        if run:
            units.append(tuple(run))
    return units


def _checked(made: Plan) -> Plan:
    for before, after in _reshapes(made):
        if _without_ones(before) != _without_ones(after):
            target = _recipe(made.view, before, after)
            if not _is_certain(made, target, after):
                need(
                    made.version >= RESHAPE_ALLOWS_ZERO_FROM,
                    "a size may be 0, which a Reshape cannot name",
                    made.view.value,
                )
                _sizes(made, target, after)
    return made


def _without_ones(groups: tuple[Group, ...]) -> list[Group]:
    return [group for group in groups if group]


def _reshapes(made: Plan) -> list[tuple[tuple[Group, ...], tuple[Group, ...]]]:
    pairs = []
    at = made.view.groups
    if made.split is not None:
        pairs.append((at, made.split))
        at = made.split
    if made.perm is not None:
        at = tuple(at[index] for index in made.perm)
    if made.joined is not None:
        pairs.append((at, made.joined))
    return pairs


def build(made: Plan) -> ir.Value:
    """The value in the layout: new nodes, where any are needed."""
    value, at = made.view.value, made.view.groups
    if made.split is not None:
        value = _reshaped(value, made, at, made.split)
        at = made.split
    if made.perm is not None:
        value = ir.node("Transpose", [value], {"perm": made.perm}).outputs[0]
        at = tuple(at[index] for index in made.perm)
    if made.joined is not None:
        value = _reshaped(value, made, at, made.joined)
    return value


def _reshaped(value: ir.Value, made: Plan, before: tuple[Group, ...], after: tuple[Group, ...]) -> ir.Value:
    if _without_ones(before) == _without_ones(after) and not _is_plain(made, before, after):
        return _with_ones(value, made, before, after)
    target = _recipe(made.view, before, after)
    if _is_certain(made, target, after):
        return ir.node("Reshape", [value, constant(target)]).outputs[0]
    return ir.node("Reshape", [value, _computed(made, target, after)], {"allowzero": 1}).outputs[0]


def _count(made: Plan, before: tuple[Group, ...], after: tuple[Group, ...]) -> int:
    """How many nodes give dimensions another form."""
    if _without_ones(before) == _without_ones(after) and not _is_plain(made, before, after):
        return int(not all(before)) + int(not all(after))
    target = _recipe(made.view, before, after)
    return 1 if _is_certain(made, target, after) else 1 + NODES_OF_SIZES


def _is_plain(made: Plan, before: tuple[Group, ...], after: tuple[Group, ...]) -> bool:
    """Whether one Reshape does what it otherwise takes a Squeeze and an Unsqueeze to do."""
    if all(before) or all(after):
        return False
    try:
        return _is_certain(made, _recipe(made.view, before, after), after)
    except Refusal:
        return False


def _with_ones(value: ir.Value, made: Plan, before: tuple[Group, ...], after: tuple[Group, ...]) -> ir.Value:
    """Dimensions of 1 go, and others come; all the rest stays."""
    gone = [place for place, group in enumerate(before) if not group]
    come = [place for place, group in enumerate(after) if not group]
    if gone:
        value = ops.squeezed(value, gone, made.version)
    return ops.unsqueezed(value, come, made.version) if come else value


def _recipe(source: View, before: tuple[Group, ...], after: tuple[Group, ...]) -> list[int]:
    """The target of a Reshape.

    Raises:
        Refusal: If there is none that is right for all sizes.
    """
    target: list[int] = []
    for place, group in enumerate(after):
        size = next(
            (size for one in group for size in one.sizes if len(group) == 1 and isinstance(size, int)), size_of(group)
        )
        if isinstance(size, int):
            need(size > 0, "a dimension is 0", source.value)
            target.append(size)
        else:
            target.append(0 if place < len(before) and before[place] == group else -1)
    return target


def _is_certain(made: Plan, target: list[int], after: tuple[Group, ...]) -> bool:
    """Whether a target names the sizes whatever they are: it infers one at most, and none beside a 0."""
    if -1 not in target:
        return True
    positive = () if made.graph is None else made.graph.meta.get(facts.POSITIVE) or ()
    others = [one for place, group in enumerate(after) if target[place] == 0 for one in group]
    known = all(any(symbolic.is_positive(size, positive) for size in one.sizes) for one in others)
    return target.count(-1) == 1 and known


def _sizes(made: Plan, target: list[int], after: tuple[Group, ...]) -> list[list[int | tuple[View, int]]]:
    """For each dimension that a target does not name, what it is the product of: numbers, and dimensions of values.

    Raises:
        Refusal: If that is not known.
    """
    factors: list[list[int | tuple[View, int]]] = []
    for number, group in zip(target, after, strict=True):
        factors.append([])
        for one in group if number <= 0 else ():
            if isinstance(one.size, int):
                factors[-1].append(one.size)
                continue
            places = (
                (view, at)
                for view in (made.view, *made.measures)
                for at, part in enumerate(view.groups)
                if part == (one,)
            )
            place = need_known(next(places, None), "a layout's sizes are not known", made.view.value)
            factors[-1].append(place)
    return factors


def _computed(made: Plan, target: list[int], after: tuple[Group, ...]) -> ir.Value:
    """A target whose sizes are taken from values."""
    parts = []
    for number, factors in zip(target, _sizes(made, target, after), strict=True):
        values = [constant([number])] if number > 0 else [_factor(one) for one in factors]
        size = values[0]
        for other in values[1:]:
            size = ir.node("Mul", [size, other]).outputs[0]
        parts.append(size)
    return ir.node("Concat", parts, {"axis": 0}).outputs[0]


def _factor(one: int | tuple[View, int]) -> ir.Value:
    if isinstance(one, int):
        return constant([one])
    view, at = one
    return size_along(view.value, at)


def size_along(value: ir.Value, axis: int) -> ir.Value:
    """A dimension of a value, as a vector of one element, in the words of all opsets."""
    shape = ir.node("Shape", [value]).outputs[0]
    return ir.node("Gather", [shape, constant([axis])]).outputs[0]

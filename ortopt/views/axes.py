"""Where the axes of a computation are in a value: through Transpose and Reshape, however they stand in a chain.

An `Axis` is one of a computation, as the heads are; a `View` says which axes, in which order, each dimension of a value
consists of. From the view of one value follows that of its neighbour. What a Reshape splits are two axes from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.match import Dim, Refusal, array_of, is_constant, is_op, only_user, optional, same_dim, shape_of
from ortopt.semantics.op_traits import RESHAPING

_VIEWS = (*sorted(RESHAPING), "Identity")

LONGEST = 8
"""How many moves behind one another are followed."""

Shapes: TypeAlias = Callable[[ir.Value], "Sequence[Dim] | None"]
"""What tells the dimensions of a value: more of them may be known where something holds."""


class Axis:
    """An axis of a computation.

    Attributes:
        sizes: Its size: expressions that are equal wherever the model runs.
        parts: The two axes that it has turned out to consist of, the outer one first; none if it is one.
    """

    __slots__ = ("parts", "sizes")

    def __init__(self, *sizes: Dim) -> None:
        self.sizes = list(sizes)
        self.parts: tuple[Axis, ...] = ()

    @property
    def size(self) -> Dim:
        """Its size, in one of the ways to say it."""
        return self.sizes[0]

    def is_size(self, dim: Dim) -> bool:
        """Whether a dimension is of this axis' size."""
        return any(same_dim(own, dim) for own in self.sizes)

    def learn(self, dim: Dim) -> None:
        """Note another expression for the size."""
        if symbolic.is_known(dim) and not self.is_size(dim):
            self.sizes.append(dim)
            self.sizes.sort(key=lambda size: (not isinstance(size, int), symbolic.is_invented(size)))

    def leaves(self) -> tuple[Axis, ...]:
        """The axes that it consists of."""
        if not self.parts:
            size = self.sizes[0]
            return () if type(size) is int and size == 1 else (self,)  # to compare a symbol with 1 takes long
        return tuple(leaf for part in self.parts for leaf in part.leaves())


Group = tuple[Axis, ...]


def leaves(axes: Iterable[Axis]) -> Group:
    """The axes that some axes consist of; those of size 1 do not count."""
    return tuple(leaf for one in axes for leaf in one.leaves())


def size_of(axes: Iterable[Axis]) -> Dim:
    """The product of the sizes of axes."""
    return symbolic.product(one.size for one in leaves(axes))


class View(Struct, frozen=True, eq=False):
    """Which axes the dimensions of a value consist of.

    Attributes:
        value: The value.
        parts: For each dimension its axes, as they were when the view was made.
    """

    value: ir.Value
    parts: tuple[Group, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """For each dimension its axes, outermost first."""
        return tuple(map(leaves, self.parts))

    @property
    def axes(self) -> Group:
        """All axes, in order."""
        return leaves(one for group in self.parts for one in group)


def regrouped(axes: Iterable[Axis], shape: Sequence[Dim]) -> tuple[Group, ...] | None:
    """The axes in the dimensions of another shape of the same elements; None where it is not proven which they are."""
    rest = list(leaves(axes))
    groups = []
    for dim in shape:
        group: list[Axis] = []
        left = dim
        while left != 1:
            following = _next(rest, left)
            if following is None:
                return None
            group.append(rest.pop(0))
            left = following
        groups.append(tuple(group))
    return None if rest else tuple(groups)


def _next(rest: list[Axis], left: Dim) -> Dim | None:
    """What is left of a dimension after the first axis, which is split if the dimension ends within it."""
    if not rest:
        return None
    first = rest[0]
    if first.is_size(left):
        return 1
    for size in first.sizes:
        quotient = symbolic.quotient_exact(left, size)
        if quotient is not None:
            return quotient
    for size in first.sizes:
        inner = symbolic.quotient_exact(size, left)
        if inner is not None:
            first.parts = (Axis(left), Axis(inner))
            rest[:1] = first.parts
            return 1
    return None


def above(view: View, shapes: Shapes = shape_of) -> View | None:
    """The view of what a value is another shape or order of; None where it is nothing of the kind.

    Args:
        view: The view of the value.
        shapes: Tells the dimensions of values.
    """
    node = view.value.producer()
    source = None if node is None or not node.inputs else node.inputs[0]
    if node is None or source is None:
        return None
    perm = _perm(node, len(view.parts))
    return _across(view, node, source, shapes, None if perm is None else [perm.index(at) for at in range(len(perm))])


def below(view: View, node: ir.Node, shapes: Shapes = shape_of) -> View | None:
    """The view of the result of a node that reads a value; None where it is neither another shape nor order of it.

    Args:
        view: The view of the value.
        node: The node.
        shapes: Tells the dimensions of values.
    """
    if node.inputs[0] is not view.value:
        return None
    return _across(view, node, node.outputs[0], shapes, _perm(node, len(view.parts)))


def all_above(view: View, shapes: Shapes = shape_of) -> list[View]:
    """A view, and those of what its value is another shape or order of, each of the one before."""
    views = [view]
    while len(views) <= LONGEST and (following := above(views[-1], shapes)) is not None:
        views.append(following)
    return views


def all_below(view: View, shapes: Shapes = shape_of) -> tuple[list[View], list[ir.Node]]:
    """A view, and those of other shapes and orders of its value that nothing else reads; and the nodes between them."""
    views, nodes = [view], list[ir.Node]()
    for _ in range(LONGEST):
        try:
            node = only_user(views[-1].value)
        except Refusal:
            break
        following = below(views[-1], node, shapes)
        if following is None:
            break
        views.append(following)
        nodes.append(node)
    return views, nodes


def _across(view: View, node: ir.Node, value: ir.Value, shapes: Shapes, order: Sequence[int] | None) -> View | None:
    """The view of the value on the other side of a node, where a Transpose brings the parts into an order."""
    shape = shapes(value)
    if shape is None:
        return None
    if is_op(node, "Transpose"):
        fits = order is not None and len(order) == len(shape)
        return _seen(value, tuple(view.parts[place] for place in order or ()), shape) if fits else None
    groups = regrouped(view.axes, shape) if is_op(node, *_VIEWS) else None
    return None if groups is None else View(value, groups)


def _seen(value: ir.Value, groups: tuple[Group, ...], shape: Sequence[Dim]) -> View:
    for group, dim in zip(groups, shape, strict=True):
        if len(group) == 1 and not group[0].parts:
            group[0].learn(dim)
    return View(value, groups)


def _perm(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """The order of a Transpose of so many dimensions, if it is one."""
    try:
        return ops.Transpose(node).order_of(rank) if is_op(node, "Transpose") else None
    except Refusal:
        return None


def unrepeated(view: View, shapes: Shapes = shape_of) -> View | None:
    """The view of what a value repeats along some of its axes, which the view then lacks; None if it repeats nothing.

    Known are Expand, Tile, and Gather by constant indices that name each position several times in a row.

    Args:
        view: The view of the value.
        shapes: Tells the dimensions of values.
    """
    node = view.value.producer()
    source = None if node is None or not node.inputs else node.inputs[0]
    if node is None or source is None or not is_op(node, "Expand", "Tile", "Gather"):
        return None
    shape = shapes(source)
    return _ungathered(view, node, shape) if node.op_type == "Gather" else _unexpanded(view, node, shape)


def _unexpanded(view: View, node: ir.Node, shape: Sequence[Dim] | None) -> View | None:
    source = node.inputs[0]
    if source is None or shape is None or len(shape) > len(view.parts):
        return None
    groups: list[Group] = []
    own = view.groups[len(view.parts) - len(shape) :]
    for dim, group in zip(shape, own, strict=True):
        if isinstance(dim, int) and dim == 1:
            groups.append(())
        elif (len(group) == 1 and group[0].is_size(dim)) or same_dim(size_of(group), dim):
            groups.append(group)
        else:
            return None
    return View(source, tuple(groups))


def _ungathered(view: View, node: ir.Node, shape: Sequence[Dim] | None) -> View | None:
    source, indices = node.inputs[0], optional(node, 1)
    if source is None or shape is None or indices is None or not is_constant(indices):
        return None
    try:
        place = ops.Gather(node).axis
    except Refusal:
        return None
    count = shape[place]
    chosen = array_of(indices)
    if not isinstance(count, int) or chosen.ndim != 1 or count < 1 or chosen.size % count:
        return None
    times = chosen.size // count
    if times == 1 or [int(index) for index in chosen] != [index // times for index in range(chosen.size)]:
        return None
    groups = regrouped(view.groups[place], (count, times))
    if groups is None:
        return None
    kept = (*view.parts[:place], groups[0], *view.parts[place + 1 :])
    return View(source, kept)

"""Which element of a source each element of a value is: an affine function of its place, with symbolic sizes.

Each dimension of the value consists of axes, outermost first. A step along an axis is a step of so many elements, its
stride, through the elements of the source in their order. Two maps are the same where their axes are the same after all
neighbours have been joined that are one axis: that is a proof for all sizes, whatever a file declares.

Each operation raises a Refusal where what it gives is no such map, or is not proven to be one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import onnx_ir as ir
from msgspec import Struct, structs

from ortopt.graph import symbolic
from ortopt.graph.match import Dim, Refusal, need, need_known, same_dim, shape_of
from ortopt.graph.symbolic import add, mul, product, quotient_exact, sub

MAX_GATHERED = 4096
"""The most indices of a Gather that are looked at."""


class Axis(Struct, frozen=True):
    """An axis of a value.

    Attributes:
        size: How many places it has.
        stride: From place to place, so many elements of the source; 0 where it repeats, negative where it goes back.
    """

    size: Dim
    stride: Dim


Group: TypeAlias = tuple[Axis, ...]


class IndexMap(Struct, frozen=True, eq=False):
    """Where the elements of a value come from.

    Attributes:
        source: The value that they are elements of.
        shape: The dimensions of the source; one that is not known has a symbol of its own.
        groups: For each dimension of the value the axes that it consists of, outermost first.
        starts: The place in the source, along each of its dimensions, of the first element.
    """

    source: ir.Value
    shape: tuple[Dim, ...]
    groups: tuple[Group, ...]
    starts: tuple[Dim, ...]

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions of the value."""
        return tuple(product(axis.size for axis in group) for group in self.groups)

    @property
    def axes(self) -> Group:
        """All axes, in order, none of size 1, and neighbours that are one axis joined."""
        return joined(axis for group in self.groups for axis in group)

    @property
    def offset(self) -> Dim:
        """The first element, counted through the elements of the source."""
        total: Dim = 0
        for start, stride in zip(self.starts, strides_of(self.shape), strict=True):
            total = add(total, mul(start, stride))
        return total

    @property
    def keeps_order(self) -> bool:
        """Whether the value has all elements of the source in their order."""
        return same(structs.replace(self, groups=((*self.axes,),)), reshaped(identity_of(self), (product(self.shape),)))

    @property
    def is_identity(self) -> bool:
        """Whether the value is its source."""
        return same(self, identity_of(self))


def identity(value: ir.Value, rank: int | None = None) -> IndexMap:
    """The map of a value to itself.

    Args:
        value: The value.
        rank: Its rank, where its shape is not known but that is.

    Raises:
        Refusal: If its rank is not known.
    """
    dims = shape_of(value)
    if dims is None:
        rank = need_known(rank, "the shape is unknown", value)
        dims = (symbolic.UNKNOWN,) * rank
    named = (dim if symbolic.is_known(dim) else symbolic.fresh(f"views:{place}") for place, dim in enumerate(dims))
    return whole(value, tuple(named))


def identity_of(of: IndexMap) -> IndexMap:
    """The map of the source of another map to itself."""
    return whole(of.source, of.shape)


def whole(value: ir.Value, shape: tuple[Dim, ...]) -> IndexMap:
    """The map of a value of some dimensions to itself."""
    return IndexMap(
        value, shape, tuple((Axis(*pair),) for pair in zip(shape, strides_of(shape), strict=True)), (0,) * len(shape)
    )


def strides_of(shape: Sequence[Dim]) -> list[Dim]:
    """For each dimension how many elements a step along it is."""
    strides: list[Dim] = []
    stride: Dim = 1
    for dim in reversed(shape):
        strides.insert(0, stride)
        stride = mul(stride, dim)
    return strides


def same(one: IndexMap, other: IndexMap) -> bool:
    """Whether two maps give the same elements of the same source in the same shape, proven for all sizes."""
    if one.source is not other.source or not symbolic.same_shape(one.dims, other.dims):
        return False
    if any(same_dim(dim, 0) for dim in one.dims):
        return True
    alike = _same_strides(one.axes, other.axes) and _same_sizes(one.axes, other.axes)
    return alike and same_dim(one.offset, other.offset)


def _same_strides(one: Group, other: Group) -> bool:
    return symbolic.same_shape([axis.stride for axis in one], [axis.stride for axis in other])


def _same_sizes(one: Group, other: Group) -> bool:
    return symbolic.same_shape([axis.size for axis in one], [axis.size for axis in other])


class Part(NamedTuple):
    """Elements behind one another along a dimension.

    Attributes:
        start: The first one.
        end: The one after the last.
        drops: Whether it is a single one, and the dimension is gone.
    """

    start: int
    end: int
    drops: bool


def part_along(of: IndexMap, place: int) -> Part:
    """What a map takes of a dimension of its source; of all others it takes everything.

    Raises:
        Refusal: If it takes anything else, or by bounds that are no numbers.
    """
    start, drops = of.starts[place], len(of.groups) < len(of.shape)
    count = 1 if drops else of.dims[place]
    if not isinstance(start, int) or not isinstance(count, int):
        raise Refusal("a bound is computed", of.source)
    part = cut(identity_of(of), place, start, count)
    whole_part = same(of, renamed(part, gone=(place,)) if drops else part)
    need(whole_part, "it takes something else than a part of this axis", of.source)
    return Part(start, start + count, drops)


def joined(axes: Iterable[Axis]) -> Group:
    """The same axes, none of size 1, and neighbours that are one axis joined."""
    result: list[Axis] = []
    for axis in axes:
        if type(axis.size) is int and axis.size == 1:
            continue
        if result and same_dim(result[-1].stride, mul(axis.size, axis.stride)):
            result.append(Axis(mul(result.pop().size, axis.size), axis.stride))
        else:
            result.append(axis)
    return tuple(result)


def within_dims(group: Iterable[Axis], shape: Sequence[Dim]) -> list[Axis]:
    """The axes of a dimension, each within one dimension of a source.

    Args:
        group: The axes, outermost first.
        shape: The dimensions of the source.
    """
    strides = strides_of(shape)
    result: list[Axis] = []
    for axis in group:
        inner: list[Axis] = []
        left = axis
        while (place := place_of(left, strides)) is not None and same_dim(strides[place], left.stride):
            rest = quotient_exact(left.size, shape[place])
            if rest is None or same_dim(rest, 1) or same_dim(shape[place], 1):
                break
            inner.insert(0, Axis(shape[place], left.stride))
            left = Axis(rest, mul(left.stride, shape[place]))
        result += [left, *inner]
    return result


def place_of(axis: Axis, strides: Sequence[Dim]) -> int | None:
    """The dimension of a source that an axis goes along; None for one that repeats."""
    if same_dim(axis.stride, 0):
        return None
    places = (place for place, own in enumerate(strides) if not same_dim(own, 0) and quotient_exact(axis.stride, own))
    return next(places, None)


def narrowed(of: IndexMap) -> tuple[tuple[int, ...], IndexMap]:
    """The places along the last dimension of its source that a map takes, and the map from a source of these alone.

    Raises:
        Refusal: If they are not known, or not the same everywhere.
    """
    width, start = of.shape[-1], of.starts[-1]
    groups = [within_dims(joined(group), of.shape) for group in of.groups]
    last = [axis for group in groups for axis in group if place_of(axis, strides_of(of.shape)) == len(of.shape) - 1]
    places = [start] if isinstance(start, int) else []
    count = 1
    inner: dict[int, Axis] = {}
    for axis in sorted(last, key=lambda axis: axis.stride if isinstance(axis.stride, int) else 0):
        if not isinstance(axis.size, int) or not isinstance(axis.stride, int):
            raise Refusal("the places are not known", of.source)
        places = [place + step * axis.stride for step in range(axis.size) for place in places]
        inner[id(axis)] = Axis(axis.size, count)
        count *= axis.size
    if not isinstance(width, int) or not places or not 0 <= min(places) <= max(places) < width:
        raise Refusal("the places are not known", of.source)
    moved = tuple(tuple(inner.get(id(axis)) or _narrowed(axis, width, count, of) for axis in group) for group in groups)
    return tuple(places), IndexMap(of.source, (*of.shape[:-1], count), moved, (*of.starts[:-1], 0))


def _narrowed(axis: Axis, width: int, count: int, of: IndexMap) -> Axis:
    """An axis of rows of a width, where they have only a count of their places."""
    rows = quotient_exact(axis.stride, width)
    if rows is None:
        raise Refusal("the places differ from row to row", of.source)
    return Axis(axis.size, mul(rows, count))


# -- what moves do ----------------------------------------------------------------------------------------------------


def reordered(of: IndexMap, order: Sequence[int]) -> IndexMap:
    """The map with its dimensions in another order."""
    need(sorted(order) == list(range(len(of.groups))), "the permutations do not fit one another")
    return structs.replace(of, groups=tuple(of.groups[place] for place in order))


def reshaped(of: IndexMap, dims: Sequence[Dim]) -> IndexMap:
    """The map with the elements in the same order in other dimensions."""
    if symbolic.same_shape(of.dims, dims):
        return of
    if any(same_dim(dim, 0) for dim in dims):
        return structs.replace(of, groups=tuple((Axis(dim, 0),) for dim in dims))
    rest = list(of.axes)
    groups = tuple(_taken(rest, dim, of.source) for dim in dims)
    need(not rest, "the axes come apart into others", of.source)
    return structs.replace(of, groups=groups)


def _taken(rest: list[Axis], dim: Dim, about: ir.Value) -> Group:
    """The first of some axes, which are taken away, that a dimension consists of; one is split where it ends within."""
    group: list[Axis] = []
    left = dim
    while not same_dim(left, 1):
        if not rest:
            raise Refusal("the axes come apart into others", about)
        axis = rest.pop(0)
        after = quotient_exact(left, axis.size)
        if after is None:
            inner = quotient_exact(axis.size, left)
            if inner is None:
                raise Refusal("the axes come apart into others", about)
            rest.insert(0, Axis(inner, axis.stride))
            axis, after = Axis(left, mul(inner, axis.stride)), 1
        group.append(axis)
        left = after
    return tuple(group)


def renamed(of: IndexMap, gone: Sequence[int] = (), come: Sequence[int] = ()) -> IndexMap:
    """The map without some dimensions, which are 1, and with others of 1.

    Args:
        of: The map.
        gone: The dimensions to leave out.
        come: The new dimensions, as they are counted in the result.
    """
    fits = not any(symbolic.provably_different(of.dims[place], 1) for place in gone)
    need(fits, "a dimension that goes is not 1", of.source)  # and where it is not, the model does not run
    rest = iter([group for place, group in enumerate(of.groups) if place not in gone])
    total = len(of.groups) - len(gone) + len(come)
    return structs.replace(of, groups=tuple(() if place in come else next(rest) for place in range(total)))


def cut(of: IndexMap, place: int, start: Dim, count: Dim, step: int = 1) -> IndexMap:
    """The map of some elements along a dimension.

    Args:
        of: The map.
        place: The dimension.
        start: The first element, counted from the front.
        count: How many elements there are.
        step: From one to the next.
    """
    if same_dim(count, of.dims[place]) and same_dim(start, 0) and step == 1:
        return of
    outer, *inside = joined(of.groups[place]) or (Axis(1, 0),)
    inner = product(axis.size for axis in inside)
    first = quotient_exact(start, inner)
    size = quotient_exact(count, inner)
    if first is None or size is None or (inside and step != 1):
        raise Refusal("it cuts across axes", of.source)
    group = (Axis(size, mul(outer.stride, step)), *inside)
    return _put(of, place, (group,), _moved(of, first, outer.stride))


def every(of: IndexMap, place: int, start: Dim, step: int) -> IndexMap:
    """The map of every so many elements along a dimension, from one on to the end (see `cut`)."""
    left = symbolic.maximum(sub(of.dims[place], start), 0)
    return cut(of, place, start, symbolic.ceildiv(left, step), step)


def gathered(of: IndexMap, place: int, indices: Sequence[int], shape: Sequence[int]) -> IndexMap:
    """The map of elements along a dimension that are listed.

    Args:
        of: The map.
        place: The dimension.
        indices: The elements, counted from the front.
        shape: The dimensions of the list.
    """
    need(0 < len(indices) <= MAX_GATHERED, "it takes no elements, or many", of.source)
    group = joined(of.groups[place])
    need(len(group) <= 1, "it takes elements across axes", of.source)
    stride = group[0].stride if group else 0
    rest = list(joined(Axis(axis.size, mul(axis.stride, stride)) for axis in progression(indices)))
    groups = tuple(_taken(rest, dim, of.source) for dim in shape)
    return _put(of, place, groups, _moved(of, indices[0], stride))


def expanded(of: IndexMap, dims: Sequence[Dim]) -> IndexMap:
    """The map of a value that is repeated along dimensions of 1, and along new ones in front."""
    lead = len(dims) - len(of.groups)
    need(lead >= 0, "it has fewer dimensions", of.source)
    groups = [(Axis(dim, 0),) for dim in dims[:lead]]
    for dim, own, group in zip(dims[lead:], of.dims, of.groups, strict=True):
        need(same_dim(own, dim) or same_dim(own, 1), "it is not known what is repeated", of.source)
        groups.append(group if same_dim(own, dim) else (Axis(dim, 0),))  # type: ignore[arg-type]
    return structs.replace(of, groups=tuple(groups))


def concatenated(parts: Sequence[IndexMap], place: int) -> IndexMap:
    """The map of parts of one source that are joined along a dimension: at equal distances, or one behind another.

    Other dimensions of the parts have the same size, as Concat wants it.
    """
    first = parts[0]
    sizes = [part.dims[place] for part in parts]
    steps = [sub(part.offset, first.offset) for part in parts]
    for part in parts[1:]:
        need(part.source is first.source and len(part.groups) == len(first.groups), "the sources differ", first.source)
        for index, pair in enumerate(zip(first.groups, part.groups, strict=True)):
            one, other = map(joined, pair)
            alike = _same_strides(one, other) and _same_sizes(one[index == place :], other[index == place :])
            need(alike or (index == place and max(len(one), len(other)) <= 1), "the parts differ", first.source)
    if all(same_dim(size, sizes[0]) for size in sizes):
        return _put(first, place, ((*progression(steps), *first.groups[place]),), first.starts)
    strides = [axis.stride for part in parts for axis in joined(part.groups[place])]
    stride = strides[0] if strides else 0
    need(all(same_dim(stride, other) for other in strides), "the parts differ", first.source)
    total: Dim = 0
    for size, step in zip(sizes, steps, strict=True):
        need(same_dim(step, mul(total, stride)), "the parts are not one behind another", first.source)
        total = add(total, size)
    return _put(first, place, ((Axis(total, stride),),), first.starts)


def progression(numbers: Sequence[Dim]) -> Group:
    """The axes, outermost first, along which numbers, less the first of them, go by equal steps.

    Raises:
        Refusal: If they do not.
    """
    axes: list[Axis] = []
    left = list(numbers)
    while len(left) > 1:
        step = sub(left[1], left[0])
        run = 2
        while run < len(left) and same_dim(sub(left[run], left[run - 1]), step):
            run += 1
        need(len(left) % run == 0, "they go by no equal steps")
        heads = left[::run]
        for place, number in enumerate(left):
            expected = add(heads[place // run], mul(place % run, step))
            need(same_dim(number, expected), "they go by no equal steps")
        axes.insert(0, Axis(run, step))
        left = heads
    return tuple(axes)


def _put(of: IndexMap, place: int, groups: tuple[Group, ...], starts: tuple[Dim, ...]) -> IndexMap:
    return structs.replace(of, groups=(*of.groups[:place], *groups, *of.groups[place + 1 :]), starts=starts)


def _moved(of: IndexMap, start: Dim, stride: Dim) -> tuple[Dim, ...]:
    """Where a map starts if it starts so many strides further on."""
    if same_dim(start, 0) or same_dim(stride, 0):
        return of.starts
    for place, own in enumerate(strides_of(of.shape)):
        steps = None if same_dim(own, 0) else quotient_exact(stride, own)
        if steps is not None:
            moved = add(of.starts[place], mul(start, steps))
            return (*of.starts[:place], moved, *of.starts[place + 1 :])
    raise Refusal("it starts across axes", of.source)

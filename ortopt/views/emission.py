"""The cheapest chain of moves that computes a map: a Slice, then a Reshape, a Transpose, a Reshape, and an Expand.

Each of them only where the map needs it. The axes of a map are places in the dimensions of its source: what is cut off
there is a Slice, what repeats is an Expand, and the rest is another order and other dimensions of the same elements,
which `layouts` plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import onnx_ir as ir
from msgspec import Struct, structs

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, need, need_known, opset, same_dim
from ortopt.graph.symbolic import mul, quotient_exact
from ortopt.views import layouts
from ortopt.views.axes import Axis as Named
from ortopt.views.axes import View
from ortopt.views.index_map import Axis, IndexMap, joined, place_of, strides_of, within_dims

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


Taken = tuple[int, int, int, int]

FIRST, LAST = -(2**63), 2**63 - 1
"""Ends of a Slice that goes backwards, or forwards, to the end."""


class Chain(Struct, frozen=True):
    """A chain of moves.

    Attributes:
        source: What it starts from.
        cuts: What a Slice takes first: axis, start, end and step.
        moves: How that gets into another layout.
        repeats: What an Expand repeats, by dimension, 1 where it repeats nothing; empty for no Expand.
        last: How that gets its dimensions; None where it has them.
        version: The opset of ai.onnx where the nodes will stand.
    """

    source: ir.Value
    cuts: tuple[Taken, ...]
    moves: layouts.Plan
    repeats: tuple[int, ...]
    last: layouts.Plan | None
    version: int

    @property
    def transposes(self) -> int:
        """How many Transposes it has."""
        return self.moves.cost[0]

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return bool(self.cuts) + self.moves.nodes + bool(self.repeats) + (0 if self.last is None else self.last.nodes)

    def build(self, source: ir.Value | None = None) -> ir.Value:
        """Build its nodes.

        Args:
            source: What it starts from, if that is another value of the same elements.
        """
        value = self.source if source is None else source
        if self.cuts:
            value = ops.slice_node(value, self.cuts, self.version).outputs[0]
        value = _built(self.moves, value)
        if self.repeats:
            value = ir.node("Expand", [value, constant(self.repeats)]).outputs[0]
        return value if self.last is None else _built(self.last, value)


def _built(made: layouts.Plan, value: ir.Value) -> ir.Value:
    return layouts.build(structs.replace(made, view=View(value, made.view.parts)))


def chain(found: IndexMap, at: ir.Node) -> Chain:
    """The cheapest chain that computes a map.

    Args:
        found: The map.
        at: A node of the graph where it will stand.

    Raises:
        Refusal: If no such chain does.
    """
    graph = at.graph if isinstance(at.graph, ir.Graph) else None
    groups = [within_dims(joined(group), found.shape) for group in found.groups]
    parts, cuts = _parts(found, [axis for group in groups for axis in group if not same_dim(axis.stride, 0)])
    version = opset(at, "")
    need(version >= 10 or all(step == 1 for *_, step in cuts), "a Slice has no steps yet", at)
    named: dict[int, Named] = {}
    view = View(found.source, tuple(tuple(_named(axis, named) for axis in part) for part in parts))
    pieces = [[[axis] for axis in group] if _repeats(group) else [list(group)] for group in groups]
    flat = [piece for group in pieces for piece in group]
    layout = tuple(tuple(_named(axis, named) for axis in piece if not same_dim(axis.stride, 0)) for piece in flat)
    moves = layouts.plan(view, layout, graph=graph, joins=True)
    if not any(map(_repeats, flat)):
        return Chain(found.source, cuts, moves, (), None, version)
    repeats = tuple(_number(piece[0].size, at) if _repeats(piece) else 1 for piece in flat)
    full = tuple(tuple(_named(axis, named) for axis in piece) for piece in flat)
    rest = iter(full)
    wanted = tuple(tuple(axis for _ in group for axis in next(rest)) for group in pieces)
    last = layouts.plan(View(found.source, full), wanted, graph=graph, joins=True)
    return Chain(found.source, cuts, moves, repeats, last, version)


def _repeats(group: Sequence[Axis]) -> bool:
    return any(same_dim(axis.stride, 0) for axis in group)


def _number(size: Dim, at: ir.Node) -> int:
    if not isinstance(size, int):
        raise Refusal("it is no number how often elements are repeated", at)
    return size


def _named(axis: Axis, named: dict[int, Named]) -> Named:
    """The axis of layouts that an axis of a map is."""
    return named.setdefault(id(axis), Named(axis.size))


def _parts(found: IndexMap, axes: Sequence[Axis]) -> tuple[list[list[Axis]], tuple[Taken, ...]]:
    """For each dimension of the source, as it is cut, its axes, outermost first; and the cuts."""
    strides = strides_of(found.shape)
    own: list[list[Axis]] = [[] for _ in found.shape]
    for axis in axes:
        place = need_known(place_of(axis, strides), "the elements are taken across axes", found.source)
        own[place].append(axis)
    cuts = []
    for place, (size, start) in enumerate(zip(found.shape, found.starts, strict=True)):
        whole = _chained(own[place], size, strides[place]) if same_dim(start, 0) else None
        if whole is not None:
            own[place] = whole
        else:
            need(len(own[place]) <= 1, "elements of an axis are taken apart", found.source)
            cuts.append((place, *_cut(own[place], start, size, strides[place], found.source)))
    return own, tuple(cuts)


def _chained(axes: Sequence[Axis], size: Dim, stride: Dim) -> list[Axis] | None:
    """Axes that are together all places of a dimension in their order, outermost first; None if they are not."""
    chained: list[Axis] = []
    left = list(axes)
    reached: Dim = 1
    while left:
        following = next((axis for axis in left if same_dim(axis.stride, mul(reached, stride))), None)
        if following is None:
            return None
        left.remove(following)
        chained.insert(0, following)
        reached = mul(reached, following.size)
    return chained if same_dim(reached, size) else None


def _cut(axes: Sequence[Axis], start: Dim, size: Dim, stride: Dim, about: ir.Value) -> tuple[int, int, int]:
    """Start, end and step of a Slice that takes the places of one axis, or a single place."""
    axis = axes[0] if axes else Axis(1, stride)
    step, count = quotient_exact(axis.stride, stride), axis.size
    if not isinstance(start, int) or not isinstance(step, int):
        raise Refusal("a bound is computed", about)
    if isinstance(count, int):
        last = start + (count - 1) * step
        inside = min(start, last) >= 0 and symbolic.at_least(size, max(start, last) + 1)
        need(count > 0 and inside, "elements are taken beyond an axis", about)
        end = last + (1 if step > 0 else -1)
        return start, end if end >= 0 else FIRST, step
    rest = symbolic.ceildiv(symbolic.maximum(symbolic.sub(size, start), 0), step) if step > 0 else symbolic.UNKNOWN
    need(start >= 0 and (same_dim(count, rest)), "a bound is computed", about)
    return start, LAST, step

"""To gather every element of a tensor in its order is to rename its axes: how exporters broadcast masks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.analysis.coordinates import RENAMING, Linear, counts_up, linear
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, attribute, axis, dims, is_op, need, opset, optional, producer, same_dim, shape_of, values
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

AXES_ARE_INPUTS = 13
MOST_RENAMES = 3


class Found(NamedTuple):
    """The Gather, what it takes all of, and where axes of dimension 1 come in."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    ones: tuple[int, ...]


class GatherElimination(RewriteRule[Found]):
    """``Gather``, ``GatherND`` of every element in order → ``x``, with axes of dimension 1 put in.

    Such indices come from Range, by Unsqueeze, Expand, Mul, Add and Concat; transformer exports index their attention
    masks so.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Gather", "GatherND")
    opsets = (11, NEWEST_OPSET)  # before, there were no negative axes and no GatherND
    reach = 6

    def match(self, root: ir.Node) -> Found:
        """Indices that count up along each axis that they take."""
        x, indices = values(root, 2)
        if root.op_type == "GatherND":
            ones = _ones_of_coordinates(root, x, indices)
            return Found((root,), x, ones)
        place = axis(root, len(dims(x)), 0)
        found = linear(indices)
        if found is None:
            raise Refusal("the indices are not known", indices)
        size = dims(x)[place]
        need(counts_up(found, size), "the indices do not count up from 0 to the last", indices)
        result = (*dims(x)[:place], *found.dims, *dims(x)[place + 1 :])
        source, ones = _source(x, result, root)
        return Found((root,), source, ones)

    def rewrite(self, found: Found) -> ir.Node | ir.Value:
        """Put the axes in, if there are any."""
        if not found.ones:
            return found.source
        if opset(found.nodes[0]) < AXES_ARE_INPUTS:
            return ir.node("Unsqueeze", [found.source], {"axes": found.ones})
        return ir.node("Unsqueeze", [found.source, constant(np.array(found.ones, np.int64))])


def _source(x: ir.Value, result: Sequence[Dim], root: ir.Node) -> tuple[ir.Value, tuple[int, ...]]:
    """What has the result's dimensions but for ones: x, or what x is a renaming of."""
    at = x
    for _ in range(MOST_RENAMES):
        own = shape_of(at)
        ones = None if own is None else _ones_beside(own, result)
        if ones is not None:
            return at, ones
        at = values(producer(at, *RENAMING), 1)[0]
    raise Refusal("the result is another cut of the elements", root)


def _ones_beside(own: Sequence[Dim], result: Sequence[Dim]) -> tuple[int, ...] | None:
    """The axes of dimension 1 that a shape has more than another one; None if it has anything else."""
    ones: list[int] = []
    place = 0
    for index, dim in enumerate(result):
        if place < len(own) and same_dim(own[place], dim):
            place += 1
        elif same_dim(dim, 1):
            ones.append(index)
        else:
            return None
    return tuple(ones) if place == len(own) else None


def _ones_of_coordinates(root: ir.Node, x: ir.Value, indices: ir.Value) -> tuple[int, ...]:
    need(attribute(root, "batch_dims", 0) == 0, "it takes batches", root)
    shape, source = dims(indices), dims(x)
    count = shape[-1]
    need(isinstance(count, int) and 1 <= count <= len(source), "the number of coordinates is not known", indices)
    parts = _coordinates(indices, len(shape) - 1)
    need(len(parts) == count, "a coordinate is not known", indices)
    last = -1
    for dim, part in zip(source, parts, strict=False):
        moving = part.moving
        need(len(moving) <= 1, "a coordinate counts along several axes", indices)
        if not moving:
            need(same_dim(part.offset, 0) and same_dim(dim, 1), "a coordinate does not count up to the last", indices)
            continue
        (place,) = moving
        need(place > last, "the coordinates are in another order", indices)
        whole = same_dim(part.offset, 0) and same_dim(part.strides[place], 1) and same_dim(shape[place], dim)
        need(whole, "a coordinate does not count up to the last", indices)
        last = place
    ones = _ones_beside(source, (*shape[:-1], *source[len(parts) :]))
    if ones is None:
        raise Refusal("an element is taken more than once", indices)
    return ones


def _coordinates(indices: ir.Value, last: int) -> list[Linear]:
    """The coordinates of each element, one by one."""
    whole = linear(indices)
    if whole is not None and same_dim(whole.dims[last], 1):
        return [whole]
    concat = producer(indices, "Concat")
    need(axis(concat, last + 1, 0) == last, "the coordinates are joined along another axis", concat)
    parts = [linear(value) for value in concat.inputs]
    known = [part for part in parts if part is not None and same_dim(part.dims[last], 1)]
    need(len(known) == len(parts), "a coordinate is not known", concat)
    return known

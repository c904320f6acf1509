"""The map that a chain of moves computes: each op's rule, and chains above a value.

The dimensions of what a node gives are computed from the node and those of what it reads, as far as that is possible:
what a file declares is no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.facts import contents
from ortopt.graph.integer_ranges import is_endless
from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    attribute,
    inputs,
    is_never_zero,
    need,
    need_known,
    same_dim,
    shape_of,
)
from ortopt.graph.walk import Question, each, walk
from ortopt.ops.moves import taken
from ortopt.views import index_map
from ortopt.views.emission import COPY, INFER
from ortopt.views.index_map import IndexMap, identity

LONGEST = 8
"""How many moves behind one another are read."""


def through(source: ir.Value, *nodes: ir.Node, rank: int | None = None) -> IndexMap:
    """The map of what the last of some moves gives, each of which reads the one before by its first input.

    Args:
        source: What the first of them reads.
        nodes: The moves.
        rank: The rank of the source, where its shape is not known but that is.

    Raises:
        Refusal: If that is no affine map, or not known.
    """
    found = identity(source, rank)
    for node in nodes:
        found = after(found, node)
    return found


def after(found: IndexMap, node: ir.Node, result: ir.Value | None = None) -> IndexMap:
    """The map of what a move gives, by the map of what it reads.

    Args:
        found: The map of its first input.
        node: The move; no Concat, which reads several values.
        result: Which of its results, where there are several.

    Raises:
        Refusal: If that is no affine map, or not known.
    """
    need(node.domain == "", "it does more than to move elements", node)
    if node.op_type == "Split":
        return _split(found, node, node.outputs[0] if result is None else result)
    rule = need_known(_RULES.get(node.op_type), "it does more than to move elements", node)
    return rule(found, node)


def maps(value: ir.Value, longest: int = LONGEST) -> tuple[IndexMap, ...]:
    """All maps of a value that are known, by the sources that it can be read from: the value itself first.

    Args:
        value: The value.
        longest: How many moves there are between it and a source, at most.
    """
    return walk(_maps, (value, longest), unknown=())


def _maps(about: tuple[ir.Value, int]) -> Question[tuple[ir.Value, int], tuple[IndexMap, ...]]:
    value, left = about
    node = value.producer()
    own = () if shape_of(value) is None else (identity(value),)
    if node is None or node.domain != "" or not left:
        return own
    if node.op_type == "Concat":
        operands: list[tuple[IndexMap, ...]] = yield from each(
            (operand, left - 1) for operand in node.inputs if operand is not None
        )
        return (*own, *_concatenated(node, operands))
    if node.op_type not in MOVES or node.inputs[0] is None:
        return own
    found = []
    for before in (yield node.inputs[0], left - 1):
        try:
            found.append(after(before, node, value))
        except Refusal:  # of other sources more may be known
            continue
    return (*own, *found)


def _concatenated(node: ir.Node, operands: Sequence[Sequence[IndexMap]]) -> list[IndexMap]:
    """The maps of what a Concat gives from each source that all of its operands have."""
    found = []
    for first in operands[0] if operands else ():
        parts = [next((one for one in each if one.source is first.source), None) for each in operands]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            try:
                place = ops.Concat(node).axis_of(len(first.groups))
                found.append(index_map.concatenated(known, place))
            except Refusal:
                continue
    return found


# -- one function for each op -----------------------------------------------------------------------------------------


def _transpose(found: IndexMap, node: ir.Node) -> IndexMap:
    return index_map.reordered(found, ops.Transpose(node).order_of(len(found.groups)))


def _squeeze(found: IndexMap, node: ir.Node) -> IndexMap:
    if ops.Squeeze(node).stated_axes:
        return index_map.renamed(found, gone=ops.Squeeze(node).axes_of(len(found.groups)))
    known = all(same_dim(dim, 1) or symbolic.provably_different(dim, 1) for dim in found.dims)
    need(known, "a dimension may be 1", node)
    return index_map.renamed(found, gone=[place for place, dim in enumerate(found.dims) if same_dim(dim, 1)])


def _unsqueeze(found: IndexMap, node: ir.Node) -> IndexMap:
    stated = ops.Unsqueeze(node).stated_axes
    axes = ops.Unsqueeze(node).axes_of(len(found.groups) + len(stated)) if stated else ()
    need(len(axes) == len(stated), "it names an axis twice", node)
    return index_map.renamed(found, come=axes)


def _reshape(found: IndexMap, node: ir.Node) -> IndexMap:
    return index_map.reshaped(found, dims_after(node, found.dims))


def dims_after(node: ir.Node, source: Sequence[Dim]) -> tuple[Dim, ...]:
    """The dimensions that a Reshape, Flatten, Squeeze, Unsqueeze or Transpose gives.

    Args:
        node: The node.
        source: The dimensions of what it reads, as the node says them or as they follow from nodes before it.

    Raises:
        Refusal: If that is not known, or makes no sense.
    """
    if node.op_type == "Reshape":
        return _reshaped_dims(node, source)
    if node.op_type == "Flatten":
        axis = ops.Flatten(node).axis_of(len(source))
        return symbolic.product(source[:axis]), symbolic.product(source[axis:])
    return after(index_map.whole(inputs(node, 1)[0], tuple(source)), node).dims


def _reshaped_dims(node: ir.Node, source: Sequence[Dim]) -> tuple[Dim, ...]:
    known = need_known(contents(inputs(node, 2)[1]), "the target shape is not known", node)
    copies = attribute(node, "allowzero", 0) != 1
    dims: list[Dim] = []
    for axis, dim in enumerate(known):
        if same_dim(dim, COPY) and copies:
            need(axis < len(source), "it copies a dimension that is not there", node)
            dims.append(source[axis])
        elif isinstance(dim, int) or is_never_zero(dim, node) or not copies:
            dims.append(dim)
        else:  # a computed 0 copies a multiple of it, which is 0 then too; where nothing is to be copied it is an error
            dims.append(dim if axis >= len(source) or symbolic.divides(dim, source[axis]) else symbolic.UNKNOWN)
    free = [axis for axis, dim in enumerate(dims) if same_dim(dim, INFER)]
    need(len(free) <= 1, "two dimensions are free", node)
    for axis in free:
        others = symbolic.product(dim for other, dim in enumerate(dims) if other != axis)
        quotient = symbolic.quotient_exact(symbolic.product(source), others)
        dims[axis] = symbolic.UNKNOWN if quotient is None else quotient
    result = node.outputs[0]
    proven = None if result.is_graph_output() else shape_of(result)
    if proven is None or len(proven) != len(dims):
        return tuple(dims)
    return tuple(dim if symbolic.is_known(dim) else own for dim, own in zip(dims, proven, strict=True))


def _slice(found: IndexMap, node: ir.Node) -> IndexMap:
    for axis, *bounds in ops.Slice(node).cuts:
        size = found.dims[axis]
        start, end, step = bounds
        if not isinstance(step, int) or step == 0:
            raise Refusal("a step is computed", node)
        if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
            places = taken(size, start, end, step)
            found = index_map.cut(found, axis, places.start if places else 0, len(places), step)
            continue
        need(step > 0, "it steps backwards", node)
        first = _from_front(start, size, node)
        last = size if is_endless(end) else _from_front(end, size, node)
        count = symbolic.ceildiv(symbolic.maximum(symbolic.sub(symbolic.minimum(last, size), first), 0), step)
        found = index_map.cut(found, axis, first, count, step)
    return found


def _from_front(bound: Dim, size: Dim, node: ir.Node) -> Dim:
    """A bound counted from the front, which may be beyond the end."""
    if symbolic.at_least(bound, 0):
        return bound
    whole = symbolic.add(size, bound)
    need(isinstance(bound, int) and symbolic.at_least(whole, 0), "a bound may be before the first element", node)
    return whole


def _split(found: IndexMap, node: ir.Node, result: ir.Value) -> IndexMap:
    axis = ops.Split(node).axis_of(len(found.groups))
    sizes = ops.Split(node).sizes_of(found.dims[axis])
    place = list(node.outputs).index(result)
    return index_map.cut(found, axis, _total(sizes[:place]), sizes[place])


def _total(sizes: Sequence[Dim]) -> Dim:
    total: Dim = 0
    for size in sizes:
        total = symbolic.add(total, size)
    return total


def _gather(found: IndexMap, node: ir.Node) -> IndexMap:
    axis = ops.Gather(node).axis_of(len(found.groups))
    indices, size = array_of(inputs(node, 2)[1]), found.dims[axis]
    need(0 < indices.size <= index_map.MAX_GATHERED, "it takes no elements, or many", node)
    if isinstance(size, int):
        indices = np.where(indices < 0, indices + size, indices)
    inside = indices.min() >= 0 and symbolic.at_least(size, int(indices.max()) + 1)
    need(bool(inside), "an index may be out of range", node)
    return index_map.gathered(found, axis, indices.reshape(-1).tolist(), indices.shape)


def _expand(found: IndexMap, node: ir.Node) -> IndexMap:
    target = need_known(contents(inputs(node, 2)[1]), "the target shape is not known", node)
    own = ((1,) * len(target) + found.dims)[len(found.dims) :] if len(target) >= len(found.dims) else found.dims
    wide = ((1,) * len(own) + tuple(target))[len(target) :]
    return index_map.expanded(found, [dim if same_dim(to, 1) else to for dim, to in zip(own, wide, strict=True)])


def _space_to_depth(found: IndexMap, node: ir.Node) -> IndexMap:
    return _blocks(found, node, deep=False)


def _depth_to_space(found: IndexMap, node: ir.Node) -> IndexMap:
    return _blocks(found, node, deep=True)


def _blocks(found: IndexMap, node: ir.Node, *, deep: bool) -> IndexMap:
    """Of DepthToSpace and SpaceToDepth, as transpositions of six axes."""
    need(len(found.groups) == 4, "it is no image", node)
    size = attribute(node, "blocksize", 0)
    batch, channels, height, width = found.dims
    rows = attribute(node, "mode", "DCR") == "CRD"
    split: tuple[Dim, ...]
    if deep:
        inner = _divided(channels, size * size, node)
        split = (batch, inner, size, size, height, width) if rows else (batch, size, size, inner, height, width)
        order = (0, 1, 4, 2, 5, 3) if rows else (0, 3, 4, 1, 5, 2)
        whole = (batch, inner, symbolic.mul(height, size), symbolic.mul(width, size))
    else:
        high, wide = _divided(height, size, node), _divided(width, size, node)
        split, order = (batch, channels, high, size, wide, size), (0, 3, 5, 1, 2, 4)
        whole = (batch, symbolic.mul(channels, size * size), high, wide)
    return index_map.reshaped(index_map.reordered(index_map.reshaped(found, split), order), whole)


def _divided(dim: Dim, by: int, node: ir.Node) -> Dim:
    quotient = symbolic.quotient_exact(dim, by)
    if quotient is None:
        raise Refusal("the blocks do not fill the image", node)
    return quotient


_RULES: Final[dict[str, Callable[[IndexMap, ir.Node], IndexMap]]] = {
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "Identity": lambda found, _node: found,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

MOVES: Final = frozenset({*_RULES, "Split"})
"""The ops that `after` reads."""

"""A ScatterND that assigns to neighbouring places along one axis, as exporters write ``x[..., start:stop] = updates``.

It names rows by constants, behind a Transpose that brings their axis to the front, or each element by a count along
each of its axes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import facts
from ortopt.graph.match import (
    Dim,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    producer,
    same_dim,
)
from ortopt.semantics.op_traits import RESHAPING

MAX_STEPS = 8
"""So many shapes of one Range are looked through."""


class Assignment(Struct, frozen=True):
    """What is written to the places ``start <= place < stop`` of an axis, whatever the other axes."""

    updates: ir.Value
    axis: int
    start: int
    stop: int


def assignment(node: ir.Node) -> Assignment:
    """A ScatterND as an assignment to a part of one axis, whose size is fixed.

    Raises:
        Refusal: If it is another, or the places are not proven.
    """
    x, indices, updates = inputs(node, 3)
    check_replaces(node)
    return _to_rows(x, indices, updates) if is_constant(indices) else _to_places(node, x, updates)


def check_replaces(node: ir.Node) -> None:
    """Refuse a ScatterND that combines what is there with what comes."""
    need(attribute(node, "reduction", "none") == "none", "the updates are combined with what is there", node)


def first_places(node: ir.Node, shape: tuple[Dim, ...]) -> list[int]:
    """Where the indices of a ScatterND begin to count along each axis of what they name.

    Args:
        node: A ScatterND whose indices name each element.
        shape: The shape of its updates.

    Raises:
        Refusal: If they count in another way.
    """
    joined = producer(node.inputs[1], "Concat")
    parts = inputs(joined, len(shape))
    last = ops.Concat(joined).axis_of(len(shape) + 1) == len(shape)
    need(len(joined.inputs) == len(shape) and last, "the indices are not put together by axis", joined)
    return [_first(_counted(part, place, shape)) for place, part in enumerate(parts)]


def _to_rows(x: ir.Value, indices: ir.Value, updates: ir.Value) -> Assignment:
    """Rows that constants name, each once and one behind the other, of the first axes that they count along."""
    named = array_of(indices)
    counted = named.shape[-1] if named.ndim else 0
    whole = dims(x)[:counted]
    rows = named.ndim == counted + 1 == len(whole) + 1 > 1 and bool(named.size)
    need(rows, "the indices are not those of rows", indices)
    sizes = np.array([size if isinstance(size, int) else 0 for size in whole])  # of one that is not known, no row is
    named = np.where(named < 0, named + sizes, named)
    starts = named[(0,) * counted]
    counting = np.moveaxis(np.indices(named.shape[:-1]), 0, -1) + starts
    in_range = bool(((named >= 0) & (named < sizes)).all())
    need(in_range and np.array_equal(named, counting), "the rows do not follow each other", indices)  # else it fails
    parts = [at for at, size in enumerate(whole) if named.shape[at] != size] or [0]
    need(len(parts) == 1, "it is not a part of one axis that is assigned", indices)
    (along,) = parts
    return Assignment(updates, along, int(starts[along]), int(starts[along]) + named.shape[along])


def _to_places(node: ir.Node, x: ir.Value, updates: ir.Value) -> Assignment:
    """Elements, or rows of the first axes, that counts name, all of them along each axis but one."""
    size = dims(x)
    named = len(producer(node.inputs[1], "Concat").inputs)
    whole = size[:named]
    shape = dims(updates, len(size))[:named]
    parts = [at for at, (own, size) in enumerate(zip(shape, whole, strict=True)) if not same_dim(own, size)]
    need(len(parts) == 1, "it is not a part of one axis that is assigned", node)
    starts = first_places(node, shape)
    (along,) = parts
    need(not any(starts[:along] + starts[along + 1 :]), "the indices do not count from 0", node)
    count, start = shape[along], starts[along]
    need(isinstance(count, int) and start >= 0, "the places are not fixed", updates)
    assert isinstance(count, int)
    return Assignment(updates, along, start, start + count)


def _counted(part: ir.Value, place: int, shape: tuple[Dim, ...]) -> ir.Value:
    """What a part of the indices says of each element along one axis, if it is as long as the axis and for it alone."""
    if _is_line(part, place, shape):
        return part
    node = producer(part, "Unsqueeze")
    need(ops.Unsqueeze(node).axes == (len(shape),), "the indices have no axis of their own", node)
    expand = producer(node.inputs[0], "Expand")
    whole = dims(expand.outputs[0], len(shape))
    need(all(map(same_dim, whole, shape)), "the indices may be for a part", expand)
    counted, _ = inputs(expand, 2)
    own = dims(counted)
    behind = len(shape) - place
    fits = len(own) >= behind or same_dim(shape[place], 1)
    alone = all(dim == 1 or len(own) - at == behind for at, dim in enumerate(own))
    need(fits and alone, "an index is not for one axis", counted)
    need(same_dim(own[-behind] if len(own) >= behind else 1, shape[place]), "not all positions are named", counted)
    return counted


def _is_line(part: ir.Value, place: int, shape: tuple[Dim, ...]) -> bool:
    """Whether a part of the indices has an element for each along one axis, and the other axes have one place each."""
    own = dims(part)
    single = all(dim == 1 for at, dim in enumerate(shape) if at != place)
    return single and len(own) == len(shape) + 1 and all(map(same_dim, own, (*shape, 1)))


def _first(value: ir.Value) -> int:
    """The first of numbers that count up by ones, whatever their shape."""
    for _ in range(MAX_STEPS):
        node = value.producer()
        if not is_op(node, *RESHAPING, "Identity") or node is None or node.inputs[0] is None:
            break
        value = node.inputs[0]
    if is_constant(value):
        content = array_of(value).reshape(-1)
        start = int(content[0]) if content.size else 0
        need(
            np.array_equal(content, np.arange(start, start + content.size)),
            "the indices do not count from 0, nor from another number",
            value,
        )
        return start
    first, _, step = inputs(producer(value, "Range"), 3)
    need(_is(first, 0) and _is(step, 1), "the indices do not count from 0", value)
    return 0


def _is(value: ir.Value, number: int) -> bool:
    known = facts.all_contents(value)
    return known is not None and len(known) == 1 and same_dim(known[0], number)


__all__ = ["MAX_STEPS", "Assignment", "assignment", "check_replaces", "first_places"]

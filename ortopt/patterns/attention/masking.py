"""What a mask masks: later positions, padded keys, or something else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from msgspec import Struct, field

from ortopt.graph import facts, symbolic
from ortopt.graph.match import (
    INTEGERS,
    Dim,
    Refusal,
    array_of,
    attribute,
    inputs,
    is_constant,
    is_op,
    optional,
    shape_of,
    splat,
)
from ortopt.graph.walk import Answers, Question, walk
from ortopt.patterns.attention.mask import LOWEST

_SHAPES = ("Identity", "Reshape", "Squeeze", "Unsqueeze")
_LONGEST = 16
_ADDED, _KEPT, _LEFT = "added", "true where scores stay", "false where scores stay"
"""What a value is to the scores."""

_COMPARISONS = {"LessOrEqual": (1, 0), "Less": (1, -1), "GreaterOrEqual": (-1, 0), "Greater": (-1, -1)}
"""Of a comparison ``a ? b``: whether a is the smaller (1) or the greater (-1), and what is added to the greater."""


class Masking(Struct):
    """What a mask masks.

    Attributes:
        causal: Whether a query sees no key after its own position, the last query that of the last key.
        padding: Conditions [batch, 1, 1, keys] that say which keys count.
        others: What else it does; nothing if it is empty.
    """

    causal: bool = False
    padding: list[ir.Value] = field(default_factory=list)
    others: list[ir.Value] = field(default_factory=list)


def masking(added: Sequence[ir.Value], kept: Sequence[tuple[ir.Value, bool]], queries: Dim, keys: Dim) -> Masking:
    """What is masked by terms and conditions.

    Args:
        added: What is added to the scores.
        kept: Conditions, and whether they are true (or false) where scores stay.
        queries: The length of the queries.
        keys: The length of the keys, the past included.
    """
    found = Masking()
    shift = symbolic.sub(keys, queries)
    note, answers = partial(_noted, found, shift), Answers[tuple[ir.Value, str], bool]()
    starts = [*((value, _ADDED) for value in added), *((value, _KEPT if keeps else _LEFT) for value, keeps in kept)]
    for value, role in starts:
        if not walk(note, (value, role), unknown=False, answers=answers):
            found.others.append(value)
    return found


def _noted(found: Masking, shift: Dim, about: tuple[ir.Value, str]) -> Question[tuple[ir.Value, str], bool]:
    """Note what a term or a condition says; what it consists of that is not known is something else."""
    value, role = about
    parts = _of_term(value) if role is _ADDED else _of_condition(value, role)
    for part in parts:
        if not (yield part):
            found.others.append(part[0])
    if parts:
        return True
    is_triangle = role is not _LEFT and _is_triangle(value, shift, masks=role is _ADDED)
    if is_triangle or (role is _KEPT and _is_order(value.producer(), shift)):
        found.causal = True
    elif role is _KEPT and _is_for_keys(value):
        found.padding.append(value)
    else:
        found.others.append(value)
    return True


def _of_term(value: ir.Value) -> list[tuple[ir.Value, str]]:
    """What a term of a sum consists of; nothing if it is one by itself."""
    node = value.producer()
    if is_op(node, "Add"):
        assert node is not None
        return [(operand, _ADDED) for operand in inputs(node, 2)]
    if is_op(node, "Expand", "Identity", "Unsqueeze") and node is not None and node.inputs[0] is not None:
        return [(node.inputs[0], _ADDED)]
    if is_op(node, "Where"):
        assert node is not None
        condition, yes, no = inputs(node, 3)
        for masked, open_, role in ((no, yes, _KEPT), (yes, no, _LEFT)):
            if _is_lowest(masked) and _is_number(open_, 0.0):
                return [(condition, role)]
    return []


def _of_condition(value: ir.Value, role: str) -> list[tuple[ir.Value, str]]:
    """What a condition consists of; nothing if it is one by itself."""
    node = value.producer()
    if is_op(node, "Not"):
        assert node is not None
        return [(inputs(node, 1)[0], _LEFT if role is _KEPT else _KEPT)]
    if is_op(node, "And" if role is _KEPT else "Or"):
        assert node is not None
        return [(operand, role) for operand in inputs(node, 2)]
    if is_op(node, "Expand", "Identity") and node is not None and node.inputs[0] is not None:
        return [(node.inputs[0], role)]
    return []


def _is_for_keys(value: ir.Value) -> bool:
    shape = shape_of(value)
    return shape is not None and len(shape) == 4 and shape[1] == shape[2] == 1


def _is_lowest(value: ir.Value) -> bool:
    try:
        return float(splat(value).item()) <= LOWEST
    except Refusal:
        return False


def _is_number(value: ir.Value, number: float) -> bool:
    try:
        return float(splat(value).item()) == number
    except Refusal:
        return False


# Comparisons of positions


def _is_order(node: ir.Node | None, shift: Dim) -> bool:
    """Whether a comparison says: a key is not behind its query."""
    if node is None or not is_op(node, *_COMPARISONS):
        return False
    direction, more = _COMPARISONS[node.op_type]
    a, b = inputs(node, 2)
    key, query = (a, b) if direction == 1 else (b, a)
    first_key, first_query = _first(key, place=1), _first(query, place=2)
    if first_key is None or first_query is None:
        return False
    return symbolic.equal(symbolic.add(symbolic.sub(first_query, first_key), more), shift)


def _first(value: ir.Value, *, place: int) -> Dim | None:
    """The first of positions that a value counts along one axis, given from the end; None if it does not."""
    shape = shape_of(value)
    if shape is None or len(shape) < place or any(dim != 1 for at, dim in enumerate(shape) if len(shape) - at != place):
        return None
    offset: Dim = 0
    for _ in range(_LONGEST):
        node = value.producer()
        if value.dtype not in INTEGERS:
            return None
        if is_op(node, *_SHAPES, "Cast") and node is not None and node.inputs[0] is not None:
            value = node.inputs[0]
        elif is_op(node, "Add", "Sub"):
            assert node is not None
            a, b = inputs(node, 2)
            if node.op_type == "Add" and _single(a) is not None:
                a, b = b, a
            number = _single(b)
            if number is None:
                return None
            offset = symbolic.add(offset, number) if node.op_type == "Add" else symbolic.sub(offset, number)
            value = a
        elif is_op(node, "Range"):
            assert node is not None
            start, _, step = inputs(node, 3)
            first, by = _single(start), _single(step)
            return symbolic.add(offset, first) if first is not None and by == 1 else None
        else:
            return None
    return None


def _single(value: ir.Value) -> Dim | None:
    """The one integer that a value holds, perhaps as an expression; None if it is not known."""
    known = facts.all_contents(value)
    return known[0] if known is not None and len(known) == 1 and symbolic.is_known(known[0]) else None


# Triangles


def _is_triangle(value: ir.Value, shift: Dim, *, masks: bool) -> bool:
    """Whether a value has one number up to the diagonal and another behind it.

    Args:
        value: A condition, or what is added.
        shift: How far the diagonal is moved to the right.
        masks: Whether it is added: 0 up to the diagonal, and the lowest number behind.
    """
    offset: Dim = 0
    for _ in range(_LONGEST):
        if is_constant(value):
            return _is_triangular(array_of(value), offset, shift, masks=masks)
        node = value.producer()
        if node is None or not node.inputs or node.inputs[0] is None:
            return False
        if is_op(node, *_SHAPES, "Cast", "Expand"):
            if not _is_same_matrix(value, node.inputs[0]):
                return False
            value = node.inputs[0]
        elif is_op(node, "Slice"):
            moved = _sliced(node)
            if moved is None:
                return False
            offset = symbolic.add(offset, moved)
            value = node.inputs[0]
        elif is_op(node, "Trilu"):
            return symbolic.equal(offset, 0) and _is_trilu(node, shift, masks=masks)
        else:
            return False
    return False


def _is_same_matrix(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values with the same elements, perhaps repeated, have the same last two dimensions."""
    shapes = shape_of(a), shape_of(b)
    matrices = [None if shape is None or len(shape) < 2 else shape[-2:] for shape in shapes]
    return symbolic.same_shape(*matrices)


def _is_triangular(content: npt.NDArray[Any], offset: Dim, shift: Dim, *, masks: bool) -> bool:
    if content.ndim < 2 or content.size != content.shape[-1] * content.shape[-2]:
        return False
    rows, columns = content.shape[-2:]
    matrix = content.reshape(rows, columns)
    diagonal = symbolic.sub(shift, offset)
    if not isinstance(diagonal, int):
        return False
    lower: npt.NDArray[np.bool_] = np.tri(rows, columns, diagonal) != 0
    if masks:
        return bool(np.where(lower, matrix == 0, matrix <= LOWEST).all())
    return bool(np.array_equal(matrix != 0, lower))


def _sliced(node: ir.Node) -> Dim | None:
    """By how much a Slice moves the diagonal to the right; None if that is not known."""
    starts, axes, steps = optional(node, 1), optional(node, 3), optional(node, 4)
    shape = None if node.inputs[0] is None else shape_of(node.inputs[0])
    if starts is None or axes is None or shape is None or (steps is not None and _single(steps) != 1):
        return None
    start, place = _single(starts), _single(axes)
    if start is None or not isinstance(place, int) or not symbolic.at_least(start, 0):
        return None
    behind = len(shape) - place % len(shape)
    return {1: symbolic.sub(0, start), 2: start}.get(behind)


def _is_trilu(node: ir.Node, shift: Dim, *, masks: bool) -> bool:
    k = optional(node, 1)
    moved = 0 if k is None else _single(k)
    upper = bool(attribute(node, "upper", 1))
    source = node.inputs[0]
    if moved is None or source is None or upper is not masks:
        return False
    if masks:
        return _is_lowest(source) and symbolic.equal(symbolic.sub(moved, 1), shift)
    return _is_number(source, 1.0) and symbolic.equal(moved, shift)


__all__ = ["Masking", "masking"]

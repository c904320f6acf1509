"""A mask that is added to scores is one choice by one condition, whatever arithmetic an exporter made of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.coordinates import difference, linear
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import INTEGERS
from ortopt.graph.match import (
    FLOATS,
    Dim,
    Refusal,
    attribute,
    dims,
    dtype,
    inputs,
    is_op,
    is_used_once,
    need,
    need_present,
    optional,
    producer,
    same_dim,
    scalar,
    splat,
    users,
)
from ortopt.graph.symbolic import same_shape
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import MOVING, RESHAPING

MOVERS = (*sorted(RESHAPING), "Expand", "Slice", "Transpose")
"""Ops that may lie between a choice and what reads it: they move booleans as well."""

MAX_MOVES = 8

STEPS_ABOVE = {"Greater": 1, "GreaterOrEqual": 0}
"""How far the first operand of a comparison is above the second one at least, where it holds."""

STEPS_BELOW = {"Less": 1, "LessOrEqual": 0}
"""The same with the operands exchanged."""

ROWS_AND_COLUMNS = 2

BLIND = frozenset({"Equal", "Exp", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Softmax"})
"""Ops that give the same for either zero."""

FOLLOWED = MOVING | {"Add", "Sub", "Sum", "Where"}
"""Ops that give numbers which differ in the sign of a zero only."""

MAX_READERS = 4096
"""How many values are looked at: a mask is added in each layer."""

LARGEST_INTEGER = 2.0**64

COMPARABLE = (ir.DataType.INT32, ir.DataType.INT64)
"""Integers that Equal compares since it broadcasts."""


class Choice(Struct, frozen=True):
    """``Where(condition, yes, no)`` of two numbers, moved.

    Attributes:
        condition: The condition, as it is before it is moved.
        moves: The ops that move it, the first one first.
        yes: The number where it holds.
        no: The number elsewhere.
    """

    condition: ir.Value
    moves: tuple[ir.Node, ...]
    yes: np.ndarray
    no: np.ndarray


class MaskCanonicalization(RewriteRule[Match]):
    """``m = Trilu(-big) · Cast(j > i)``, ``Where(m + Cast(k) == 0, -big, m)`` → ``Where(j > i or k == 0, -big, 0)``.

    A triangle of a number times a comparison of places that holds within the triangle only is a choice by that
    comparison. A choice that another one looks at for its numbers is one choice: where the mask of padded keys is
    added to it and the sum is 0, neither forbids. A zero may lose its sign where only a Softmax or a comparison would
    see it.
    """

    after = ("broadcast_expand_elimination", "constant_folding", "not_where_fusion", "shape_folding")
    roots = ("Mul", "Where")
    opsets = (9, NEWEST_OPSET)
    lookback = 12
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """A triangle times a comparison, or a Where that asks whether a mask, or its sum with another, is a number."""
        if is_op(root, "Mul"):
            return _triangle(root)
        condition, yes, no = inputs(root, 3)
        equal = producer(condition, "Equal")
        need(is_used_once(condition), "the comparison is used elsewhere", equal)
        need(dtype(no) in FLOATS, "it does not choose floats", no)
        tested, number = _compared(equal)
        if tested is no:
            return _chosen_again(root, equal, number, splat(yes))
        return _padded(root, equal, tested, number)


def _triangle(root: ir.Node) -> Match:
    """``Trilu<upper=1>(number, k) · Cast(a > b)``, where a > b is at or above the k-th diagonal only."""
    left, right = inputs(root, 2)
    if not is_op(left.producer(), "Trilu"):
        left, right = right, left
    trilu, cast = producer(left, "Trilu"), producer(right, "Cast")
    need(attribute(trilu, "upper", 1) == 1, "it is a lower triangle", trilu)
    (held,) = inputs(cast, 1)
    need_present(dtype(held) == ir.DataType.BOOL, "no comparison comes before", cast)
    number = splat(trilu.inputs[0])
    need(number.dtype.kind == "f" and bool(np.isfinite(number)), "the number is not finite", trilu)
    first = optional(trilu, 1)
    diagonal = 0 if first is None else int(scalar(first))
    comparison = producer(held, *STEPS_ABOVE, *STEPS_BELOW)
    shape = dims(root.outputs[0])
    need(
        same_shape(dims(held), shape) and same_shape(dims(left), shape),
        "the triangle and the comparison differ in size",
        root,
    )
    above = _above(comparison, diagonal)
    need(symbolic.at_least(above, 0), "the comparison may hold outside of the triangle", comparison)
    need(same_dim(above, 0) or not _shows_signs(root.outputs[0]), "the sign of a zero shows", root)
    return Match((trilu, cast, root), lambda: _where(held, number, np.zeros_like(number)))


def _above(comparison: ir.Node, diagonal: int) -> Dim:
    """How far above a diagonal a comparison begins to hold; unknown if it is not about the last two indices."""
    a, b = inputs(comparison, 2)
    if comparison.op_type in STEPS_BELOW:
        a, b = b, a
    least = (STEPS_ABOVE | STEPS_BELOW)[comparison.op_type]
    first, second = linear(a), linear(b)
    shape = dims(comparison.outputs[0])
    gap = None if first is None or second is None else difference(first, second, shape)
    if gap is None or len(shape) < ROWS_AND_COLUMNS:
        return symbolic.UNKNOWN
    *others, row, column = gap.strides
    if not (same_dim(row, -1) and same_dim(column, 1) and all(same_dim(one, 0) for one in others)):
        return symbolic.UNKNOWN
    return symbolic.sub(least - diagonal, gap.offset)


def _shows_signs(value: ir.Value) -> bool:
    """Whether anything but exponentials and comparisons may see the sign of a value's zeros."""
    pending, seen = [value], {value}
    while pending and len(seen) <= MAX_READERS:
        value = pending.pop()
        if value.is_graph_output():
            return True
        for user in users(value):
            if user.domain == "" and user.op_type in BLIND:
                continue
            if user.domain != "" or user.op_type not in FOLLOWED or user.inputs[0] is None:
                return True
            pending += [result for result in user.outputs if result not in seen]
            seen.update(user.outputs)
    return bool(pending)


def _compared(equal: ir.Node) -> tuple[ir.Value, np.ndarray]:
    """The operand of an Equal that is no constant, and the number that it is compared with."""
    a, b = inputs(equal, 2)
    for tested, other in ((a, b), (b, a)):
        try:
            return tested, splat(other)
        except Refusal:
            continue
    raise Refusal("it is compared with no number", equal)


def _choice(value: ir.Value) -> Choice:
    """The choice that a value is, behind ops that move elements."""
    at, moves = _before_moves(value)
    where = producer(at, "Where")
    condition, yes, no = inputs(where, 3)
    need(same_shape(dims(condition), dims(at)), "its numbers have more elements than its condition", where)
    return Choice(condition, moves, splat(yes), splat(no))


def _before_moves(value: ir.Value) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """A value before it is moved, and the ops that move it, the first one first."""
    moves: list[ir.Node] = []
    node = value.producer()
    while is_op(node, *MOVERS) and len(moves) < MAX_MOVES:
        moves.append(node)
        value = node.inputs[0] or value
        node = value.producer()
    return value, tuple(reversed(moves))


def _chosen_again(root: ir.Node, equal: ir.Node, number: np.ndarray, other: np.ndarray) -> Match:
    """``Where(m == a, c, m)`` of a choice m between a and b: one between c and b."""
    mask = inputs(root, 3)[2]
    need(set(users(mask)) == {root, equal} and not mask.is_graph_output(), "the mask is used elsewhere", mask)
    chosen = _choice(mask)
    is_yes, is_no = bool(chosen.yes == number), bool(chosen.no == number)
    need(is_yes is not is_no, "the comparison does not tell its numbers apart", equal)
    yes, no = (other, chosen.no) if is_yes else (chosen.yes, other)
    return Match((equal, root), lambda: _where(ops.followed(chosen.condition, chosen.moves), yes, no))


def _padded(root: ir.Node, equal: ir.Node, tested: ir.Value, number: np.ndarray) -> Match:
    """``Where(m + Cast(kept) == 0, big, m)`` of a choice m between big and 0."""
    _, yes, mask = inputs(root, 3)
    total = producer(tested, "Add")
    need(is_used_once(tested), "the sum is used elsewhere", total)
    need(number == 0, "the sum is not compared with 0", equal)
    a, b = inputs(total, 2)
    need(mask in (a, b), "what is chosen is not in the sum", total)
    chosen = _choice(mask)
    need(bool(chosen.no == 0), "the mask is nowhere 0", mask)
    need(splat(yes).tobytes() == chosen.yes.tobytes(), "another number is chosen than the mask's", root)
    padding, moved = _integers(b if mask is a else a)
    need(abs(float(chosen.yes)) > LARGEST_INTEGER, "the mask's number and an integer may sum up to 0", mask)

    def build() -> ir.Node:
        operands = [ops.followed(chosen.condition, chosen.moves), ops.followed(_is_zero(padding), moved)]
        return _where(ir.node("Or", operands).outputs[0], chosen.yes, chosen.no)

    return Match((total, equal, root), build)


def _where(condition: ir.Value, yes: np.ndarray, no: np.ndarray) -> ir.Node:
    return ir.node("Where", [condition, constant(yes), constant(no)])


def _integers(value: ir.Value) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """What a Cast makes floats of, and what moves them behind it."""
    at, moves = _before_moves(value)
    (integers,) = inputs(producer(at, "Cast"), 1)
    need(dtype(integers) in INTEGERS, "what is added comes from no integers", integers)
    return integers, moves


def _is_zero(value: ir.Value) -> ir.Value:
    """Where integers are 0, or booleans false."""
    kind = dtype(value)
    if kind in COMPARABLE:
        return ir.node("Equal", [value, constant(np.zeros((), kind.numpy()))]).outputs[0]
    kept = value if kind == ir.DataType.BOOL else ir.node("Cast", [value], {"to": ir.DataType.BOOL}).outputs[0]
    return ir.node("Not", [kept]).outputs[0]

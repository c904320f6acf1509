"""What is added to the scores of an attention, as one tensor, whatever the steps in which it was done."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct, structs

from ortopt import ops
from ortopt.graph import facts
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT16, Dim, Refusal, is_op, need, need_known, rank, same_dim
from ortopt.patterns.attention import mask
from ortopt.patterns.attention.heads import Heads
from ortopt.patterns.attention.scores import Kind, Step
from ortopt.patterns.attention.sizes import NonemptyBatch
from ortopt.views.axes import Axis, Group, View, leaves, size_of
from ortopt.views.layouts import Plan, build, plan, size_along

_ENDS = 2
"""The input of Slice that says where it ends."""


class Term(Struct, frozen=True):
    """A step, and how what it adds, or its condition, is aligned to the scores of rank 4.

    Attributes:
        step: The step.
        plan: How `step.value` gets into the layout; None where it is aligned as it is.
        shape: Of what the value has something for each: batch, head, query, key; None for what it has 1 of.
        repeated: Dimensions of 1 that are repeated first, and how often: a value, its dimension, divided by what.
        cut: The Slice that gives `step.value`, if it leaves as many positions as there are keys; else None.
        ahead: Dimensions of 1 before those of the value, of which some are repeated.
    """

    step: Step
    plan: Plan | None
    shape: tuple[Dim | None, ...]
    repeated: tuple[tuple[int, View, int, int], ...] = ()
    cut: ir.Node | None = None
    ahead: int = 0

    @property
    def used(self) -> tuple[ir.Value, ...]:
        """What the value is computed from, if not the value itself."""
        if self.step.value is None:
            return ()
        if self.cut is None:
            return (self.step.value,)
        return tuple(value for place, value in enumerate(self.cut.inputs) if value is not None and place != _ENDS)

    @property
    def rank(self) -> int:
        """The rank of the value as it is added."""
        if self.step.value is None:
            return 0
        return rank(self.step.value) if self.plan is None else 4

    @property
    def is_plain(self) -> bool:
        """Whether the value as it is, is added."""
        return self.step.kind is Kind.ADDED and self.step.number == 1 and self.plan is None


class Bias(Struct, frozen=True):
    """The sum of what is added to the scores, numbers that take their place included.

    Attributes:
        terms: The steps, the first that happens first.
        guarded: Whether NaNs among the probabilities are set to 0.
        kind: The element type.
        whole: Whether it is proven to have a number for each key, and for each query if not the same for all.
    """

    terms: tuple[Term, ...]
    guarded: bool
    kind: ir.DataType
    whole: bool

    @property
    def shape(self) -> tuple[bool, ...]:
        """Of what it has something for each: batch, head, query, key."""
        return tuple(any(term.shape[place] is not None for term in self.terms) for place in range(4))

    def bound(self, infinite: float = math.inf) -> float | None:
        """The largest magnitude that an element can have; None if that is not known.

        Args:
            infinite: What an infinity counts as.
        """
        total: float | None = 0.0
        for term in self.terms:
            if total is None:
                return None
            total = _bounded(term.step, total, infinite)
        return total

    @property
    def is_cut(self) -> bool:
        """Whether all that has something for each key is cut to as many positions as there are keys."""
        wide = [term.cut is not None for term in self.terms if term.shape[3] is not None]
        return bool(wide) and all(wide)

    @property
    def values(self) -> tuple[ir.Value, ...]:
        """What is added, and what decides."""
        return tuple(value for term in self.terms for value in term.used)

    @property
    def depth(self) -> mask.Depth:
        """How far down the elements go."""
        return mask.depth_of(self.bound())

    @property
    def is_searched(self) -> bool:
        """Whether `mask.unmasked_bias` looks for rows without any key in it: how far down it goes is not known."""
        finite = self.bound(0.0) if self.guarded else None
        if self.kind == FLOAT16 or (finite is not None and mask.depth_of(finite) is mask.Depth.SHALLOW):
            return False
        total: float | None = 0.0
        for term in self.terms:
            total = None if total is None else _bounded(term.step, total, math.inf, mask.known_bound)
        return mask.depth_of(total) is mask.Depth.UNKNOWN

    def full(self, value: ir.Value, queries: Heads, keys: Heads, length: ir.Value | None = None) -> ir.Value:
        """The sum with a row for each query, and an element for each key: kernels do not broadcast along these.

        Args:
            value: What has become of the sum.
            queries: The queries.
            keys: The keys, with those of a past.
            length: How many keys there are, if that is known otherwise.
        """
        if self.whole and self.shape[2]:
            return value
        ahead = max(2, *(term.rank for term in self.terms)) - 2
        parts = [constant([1] * ahead)] if ahead else []
        parts.append(queries.positions())
        parts.append(constant([1]) if self.whole else length or keys.positions())
        return ir.node("Expand", [value, ir.node("Concat", parts, {"axis": 0}).outputs[0]]).outputs[0]

    def check_full(self, queries: Heads, keys: Heads) -> None:
        """Refuse where `full` cannot tell how many queries or keys there are.

        Raises:
            Refusal: The reason.
        """
        if not (self.whole and self.shape[2]):
            queries.check_positions()
        if not self.whole:
            keys.check_positions()

    def of_rank_4(self, value: ir.Value, version: int) -> ir.Value:
        """The sum with as many dimensions as the scores, in words of an opset; one for each query has two already."""
        missing = 4 - max(2, *(term.rank for term in self.terms))
        return ops.unsqueezed(value, range(missing), version) if missing else value

    def build(self, length: ir.Value | None = None) -> ir.Value:
        """The sum as a value of rank 4, or as the original has it.

        Args:
            length: How many keys there are, for what is cut to as many positions.
        """
        total: ir.Value | None = None
        for term in self.terms:
            total = _applied(term, total, self.kind, length)
        return need_known(total, "nothing is added")


def _bounded(
    step: Step, total: float, infinite: float, of: Callable[[ir.Value | None, float], float | None] = mask.bound
) -> float | None:
    if step.kind is Kind.ADDED:
        own = of(step.value, infinite)
        return None if own is None else total + own * abs(step.number)
    fill = infinite if math.isinf(step.number) else abs(step.number)
    if step.kind is Kind.RAISED:
        return total if math.isinf(step.number) else min(total, -mask.LOWEST)
    return max(total, fill)


def _applied(term: Term, total: ir.Value | None, kind: ir.DataType, length: ir.Value | None) -> ir.Value | None:
    """The sum after one more step."""
    step = term.step
    if step.kind is Kind.RAISED:
        return None if total is None else ir.node("Max", [total, constant(step.number, kind)]).outputs[0]
    assert step.value is not None
    value = _value(term, length)
    if step.kind is Kind.FILLED:
        kept = constant(np.zeros((), kind.numpy())) if total is None else total
        fill = constant(np.asarray(step.number, kind.numpy()))
        return ir.node("Where", [value, kept, fill] if step.keeps else [value, fill, kept]).outputs[0]
    if step.number != 1:
        value = ir.node("Mul", [value, constant(np.asarray(step.number, kind.numpy()))]).outputs[0]
    return value if total is None else ir.node("Add", [total, value]).outputs[0]


def _value(term: Term, length: ir.Value | None) -> ir.Value:
    """What is added, or the condition, aligned to the scores."""
    value = term.step.value
    assert value is not None
    if term.cut is not None:
        inputs = list(term.cut.inputs)
        inputs[_ENDS] = length
        value = ir.node("Slice", inputs).outputs[0]
    if term.repeated:
        ones = [constant([1])] * (term.ahead + rank(value))
        for place, view, at, divisor in term.repeated:
            times = size_along(view.value, at)
            ones[place] = times if divisor == 1 else ir.node("Div", [times, constant([divisor])]).outputs[0]
        value = ir.node("Expand", [value, ir.node("Concat", ones, {"axis": 0}).outputs[0]]).outputs[0]
    if term.plan is None:
        return value
    return build(structs.replace(term.plan, view=View(value, term.plan.view.parts)))


def term(
    step: Step, layout: Sequence[Group], same: dict[Axis, Axis], measures: Sequence[View], batch: NonemptyBatch
) -> Term:
    """How a step is aligned to scores of rank 4.

    Args:
        step: The step.
        layout: The axes of batch, heads, queries and keys.
        same: Axes that stand for others.
        measures: Values that have the sizes of axes.
        batch: Tells the dimensions of values.

    Raises:
        Refusal: If it is not.
    """
    if step.value is None:
        return Term(step, None, (None,) * 4)
    own = batch.dims(step.value)
    groups = tuple(leaves(same.get(one, one) for one in leaves(group)) for group in step.groups)
    need(len(own) <= len(groups), "the mask has another rank than the scores", step.value)
    aligned = groups[len(groups) - len(own) :]
    parts = tuple(() if dim == 1 else group for dim, group in zip(own, aligned, strict=True))
    view = View(step.value, parts)
    present = set(view.axes)
    wanted = tuple(tuple(one for one in leaves(group) if one in present) for group in layout)
    shape = tuple(_dim_of(group, view, own) if group else None for group in wanted)
    while len(wanted) > max(len(own), 1) and not wanted[0] and len(own) <= 4:
        wanted = wanted[1:]
    whole = tuple(tuple(one for one in leaves(group) if one in present) for group in layout)
    is_for_all = all(not group or group == leaves(full) for group, full in zip(whole, layout, strict=True))
    if view.groups == wanted and is_for_all:
        return Term(step, None, shape)
    ahead = 0 if is_for_all else len(groups) - len(own)  # what is repeated may have no dimension
    own, aligned, parts = (1,) * ahead + own, groups[:ahead] + aligned, ((),) * ahead + parts
    for dim, group in zip(own, parts, strict=True):
        known = (len(group) == 1 and group[0].is_size(dim)) or same_dim(size_of(group), dim)
        need(not group or known, "the mask may be broadcast", step.value)
    repeated = []
    for group, full in zip(whole, layout, strict=True):
        if group and group != leaves(full):
            repeated += [_repeat(one, aligned, measures, step.value) for one in leaves(full) if one not in group]
    if repeated:
        parts = tuple(
            aligned[place] if place in {entry[0] for entry in repeated} else part for place, part in enumerate(parts)
        )
        view = View(step.value, parts)
        present = set(view.axes)
        whole = tuple(tuple(one for one in leaves(group) if one in present) for group in layout)
    return Term(step, plan(view, whole, measures), shape, tuple(repeated), ahead=ahead)


def _repeat(
    one: Axis, aligned: Sequence[Group], measures: Sequence[View], about: ir.Value
) -> tuple[int, View, int, int]:
    """Which dimension is repeated along an axis, and how often: a value, its dimension, divided by what.

    Raises:
        Refusal: If the axis has no dimension of its own, or its size is not known.
    """
    place = next((at for at, group in enumerate(aligned) if group == (one,)), None)
    for view in measures if place is not None else ():
        for at, group in enumerate(view.groups):
            divisor = size_of(other for other in group if other is not one)
            if place is not None and one in group and isinstance(divisor, int) and divisor:
                return place, view, at, divisor
    raise Refusal("the mask is for a part of the heads", about)


def _dim_of(group: Group, view: View, own: Sequence[Dim]) -> Dim:
    return next((dim for dim, part in zip(own, view.groups, strict=True) if part == group), group[0].size)


def cut(bias: Bias, keys: Axis, batch: NonemptyBatch) -> Bias:
    """A bias of which is known what of it is cut to as many positions as there are keys, wherever there is a batch.

    Args:
        bias: The bias.
        keys: The axis of the keys.
        batch: Tells the dimensions of values.
    """
    found = structs.replace(
        bias, terms=tuple(structs.replace(term, cut=_cut(term.step.value, keys, batch)) for term in bias.terms)
    )
    return found if found.is_cut else bias


def _cut(value: ir.Value | None, keys: Axis, batch: NonemptyBatch) -> ir.Node | None:
    """The Slice that leaves as many positions of one axis as there are keys; None if none does."""
    node = None if value is None else value.producer()
    if not is_op(node, "Slice") or len(node.inputs) <= _ENDS:
        return None
    ends = node.inputs[_ENDS]
    known = None if ends is None else facts.all_contents(ends)
    return node if known is not None and len(known) == 1 and keys.is_size(batch.resolved(known[0])) else None


def check(bias: Bias) -> None:
    """Refuse what a kernel would not add as the original does.

    Raises:
        Refusal: The reason.
    """
    about = [term.step.value for term in bias.terms]
    if bias.guarded:
        need(bias.bound(0.0) is not None, "the guard would hide a NaN of the mask", *about)
    if bias.kind == FLOAT16:
        largest = bias.bound(0.0)
        need(largest is not None and largest <= mask.MAX_HALF, "a half-precision mask has large numbers", *about)
        need(bias.guarded or bias.depth is mask.Depth.SHALLOW, "a half-precision mask may leave no key", *about)

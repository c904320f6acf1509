"""Whether a value below a square root is ``scale · (x - mean(x)) / root + bias``, in whatever order it is computed.

A value is multiplied out into a sum of terms, each a coefficient, a power of the reciprocal root, and factors: x, the
mean of x, and parameters. So ``(x - m) / s · g + b``, ``(x - m) · (r · g) + b`` and ``x · (r · g) + (b - m · (r · g))``
are the same sum.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import FLOATS, Refusal, dims, inputs, is_constant, is_op, need, producer, rank, tensor_of
from ortopt.graph.symbolic import same_shape
from ortopt.graph.walk import Answers, Question, walk

ARITHMETIC: Final = ("Add", "Cast", "Div", "Expand", "Mul", "Neg", "Reciprocal", "Reshape", "Sub", "Unsqueeze")
"""The ops that are multiplied out; those that move elements only where an axis of a mean comes back."""

MEANS: Final = ("GlobalAveragePool", "ReduceMean")

_MAX_VALUES: Final = 24
"""How many values are asked about that no answer is kept for: more than in any spelling that is known."""


class Mean(NamedTuple):
    """A mean over the last axes of a value.

    Attributes:
        node: The ReduceMean, or GlobalAveragePool, which tf2onnx makes of it where it can.
        of: The value that it is the mean of.
        axis: The first axis that it is taken over, counted from the front.
    """

    node: ir.Node
    of: ir.Value
    axis: int


class Measure(Struct, frozen=True):
    """``sqrt(variance(x) + epsilon)``, or ``sqrt(mean(x²) + epsilon)``, over the last axes.

    Attributes:
        nodes: All nodes of it, the root among them.
        root: The Sqrt or Pow.
        power: Of the reciprocal root that the root's result is: 1 or -1.
        x: What is measured.
        mean: The mean of x; None if the root is not of the variance.
        axis: The first axis of the means, counted from the front.
        epsilon: What is added.
    """

    nodes: tuple[ir.Node, ...]
    root: ir.Node
    power: int
    x: ir.Value
    mean: ir.Value | None
    axis: int
    epsilon: float


class Affine(NamedTuple):
    """``scale · (x - mean) / root + bias``; scale and bias may each be missing.

    Attributes:
        nodes: The nodes that compute it from x and the root, and means of x.
        x: x, or what was cast to it: of the result's type.
        scale: Has the shape of the normalized axes, but for sizes of 1 in front; None if there is none.
        bias: Likewise.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    scale: ir.Value | None
    bias: ir.Value | None


class _Term(NamedTuple):
    """Factors of a product, each as often as it occurs, and the power of the reciprocal root."""

    power: int
    factors: tuple[ir.Value, ...]


_Sum: TypeAlias = dict[_Term, float]
"""Coefficients of terms; none is 0."""

_ONE: Final = _Term(0, ())


class Products:
    """What is computed from a square root, multiplied out; answers are kept, but for results of another type.

    Args:
        measure: The root, and what it measures.
        shape: The shape of scale and bias; None if there may be neither.
    """

    def __init__(self, measure: Measure, shape: tuple[int, ...] | None) -> None:
        self._measure = measure
        self._shape = shape
        self._dtype = measure.x.dtype
        self._answers: Answers[ir.Value, _Sum] = Answers()
        self._computed_by: dict[ir.Value, ir.Node] = {}

    def affine(self, y: ir.Value) -> Affine:
        """A value as ``scale · (x - mean) / root + bias``; without the mean where none is measured.

        Args:
            y: A value below the root.

        Raises:
            Refusal: If it is something else.
        """
        measure = self._measure
        x = next((value for value in (measure.x, source_of(measure.x)) if value and value.dtype == y.dtype), None)
        if x is None:
            raise Refusal("the result has another type than what is normalized", y)
        need(same_shape(dims(y), dims(x)), "the result has another shape than what is normalized", y)
        if y.dtype != self._dtype:  # parameters have the type of the result
            self._dtype, self._answers, self._computed_by = y.dtype, Answers(), {}
        terms = dict(self._sum_of(y))
        scale = bias = None
        for term in [term for term in terms if measure.x in term.factors]:
            rest = _without(term.factors, measure.x)
            need(len(rest) < 2 and measure.x not in rest and measure.mean not in rest, "x is multiplied by more", y)
            scale = rest[0] if rest else None
            expected = {_product(1, rest, measure.x): 1.0}
            if measure.mean is not None:
                expected[_product(1, rest, measure.mean)] = -1.0
            for wanted, coefficient in expected.items():
                need(terms.pop(wanted, 0.0) == coefficient, "it is no scaled difference", y)
            break
        else:
            raise Refusal("something else is divided", y)
        if terms:
            ((power, factors), coefficient), *more = terms.items()
            plain = not more and power == 0 and len(factors) == 1 and coefficient == 1
            need(plain and factors[0] not in (measure.x, measure.mean), "something else is added", y)
            (bias,) = factors
        return Affine(self._nodes(y), x, scale, bias)

    def _sum_of(self, value: ir.Value) -> _Sum:
        """The terms of a value.

        Raises:
            Refusal: If it is no sum of products of x, its mean, the reciprocal root and parameters.
        """
        too_much = Refusal("too much is computed from the root", value)
        return walk(self._sum, value, unknown=too_much, most=_MAX_VALUES, answers=self._answers)

    def _sum(self, value: ir.Value) -> Question[ir.Value, _Sum]:
        given = self._given(value)
        return given if given is not None else (yield from self._multiplied_out(value))

    def _nodes(self, y: ir.Value) -> tuple[ir.Node, ...]:
        """The nodes that were multiplied out for a value."""
        found: dict[ir.Node, None] = {}
        waiting = deque([y])
        while waiting:
            node = self._computed_by.get(waiting.popleft())
            if node is not None and node not in found:
                found[node] = None
                waiting.extend(value for value in node.inputs if value is not None)
        return tuple(found)

    def _given(self, value: ir.Value) -> _Sum | None:
        """A value that is not multiplied out, or None."""
        measure = self._measure
        if value is measure.x or value is source_of(measure.x):
            return {_Term(0, (measure.x,)): 1.0}
        if value is measure.root.outputs[0]:
            return {_Term(measure.power, ()): 1.0}
        if is_constant(value) and tensor_of(value).size == 1:
            number = float(np.asarray(tensor_of(value).numpy()).reshape(()))
            return {_ONE: number} if np.isfinite(number) and number else None
        return None

    def _multiplied_out(self, value: ir.Value) -> Question[ir.Value, _Sum]:
        node = value.producer()
        try:
            terms = self._mean(node, value) or (yield from self._computed(node))
        except Refusal:
            if not self._is_parameter(value):
                raise
            return {_Term(0, (value,)): 1.0}
        if not any(term.power or self._depends(term) for term in terms):
            need(self._is_parameter(value), "a parameter has not the shape of the normalized axes", value)
            return {_Term(0, (value,)): 1.0}
        if node is not None:
            self._computed_by[value] = node
        return terms

    def _depends(self, term: _Term) -> bool:
        return any(factor is self._measure.x or factor is self._measure.mean for factor in term.factors)

    def _is_parameter(self, value: ir.Value) -> bool:
        """Whether a value has the shape of the normalized axes; a constant may have sizes of 1 in front."""
        if self._shape is None or value.shape is None or value.dtype != self._dtype:
            return False
        own = dims(value)
        more = len(own) - len(self._shape)
        if more and (not is_constant(value) or len(own) > rank(self._measure.x)):
            return False
        return more >= 0 and own == (1,) * more + self._shape

    def _mean(self, node: ir.Node | None, value: ir.Value) -> _Sum | None:
        """The mean of x, or None."""
        measure = self._measure
        if measure.mean is None or not is_op(node, *MEANS):
            return None
        mean = mean_of(value)
        need(mean.of is measure.x or mean.of is source_of(measure.x), "it is the mean of something else", node)
        need(mean.axis == measure.axis, "the means are over different axes", node)
        return {_Term(0, (measure.mean,)): 1.0}

    def _computed(self, node: ir.Node | None) -> Question[ir.Value, _Sum]:
        if node is None or not is_op(node, *ARITHMETIC):
            raise Refusal("it is no sum of products", node)
        if node.op_type in ("Add", "Div", "Mul", "Sub"):
            return (yield from self._combined(node))
        (value,) = inputs(node, 1)
        if node.op_type in ("Cast", "Expand", "Reshape", "Unsqueeze"):
            self._check_unchanged(node)
        terms = yield value
        if is_op(node, "Reciprocal"):
            return _inverse(terms, node)
        return _scaled(terms, -1.0) if is_op(node, "Neg") else terms

    def _combined(self, node: ir.Node) -> Question[ir.Value, _Sum]:
        left, right = inputs(node, 2)
        a = yield left
        b = yield right
        lacking = {self._lacks_axes(value, terms) for value, terms in ((left, a), (right, b)) if set(terms) != {_ONE}}
        need(len(lacking) < 2, "an axis that a mean dropped is missing", node)
        if node.op_type in ("Mul", "Div"):
            return _multiplied(a, b if is_op(node, "Mul") else _inverse(b, node))
        return _added(a, b if is_op(node, "Add") else _scaled(b, -1.0))

    def _lacks_axes(self, value: ir.Value, terms: _Sum) -> bool:
        """Whether a value is computed from means, and lacks the axes that these dropped."""
        return any(term.power or self._depends(term) for term in terms) and rank(value) < rank(self._measure.x)

    def _check_unchanged(self, node: ir.Node) -> None:
        """Refuse a node that changes more than the type, or the axes that a mean dropped."""
        (value,) = inputs(node, 1)
        measure = self._measure
        if is_op(node, "Cast"):
            need(value.dtype in FLOATS and node.outputs[0].dtype in FLOATS, "it is no Cast between floats", node)
        elif is_op(node, "Expand"):
            alike = rank(value) == rank(node.outputs[0]) == rank(measure.x)
            need(alike, "an axis is added", node)
        else:
            need(restores(node, measure.x, measure.axis), "elements are moved", node)


def source_of(value: ir.Value) -> ir.Value | None:
    """The operand of the Cast between float types that a value comes from, or None."""
    node = value.producer()
    source = node.inputs[0] if is_op(node, "Cast") else None
    return source if source is not None and source.dtype in FLOATS and value.dtype in FLOATS else None


def mean_of(value: ir.Value) -> Mean:
    """The mean that a value is; whether it keeps its axes is for the caller to look at.

    Raises:
        Refusal: If it is none, or over other axes than the last ones.
    """
    node = producer(value, *MEANS)
    (of,) = inputs(node, 1)
    if is_op(node, "GlobalAveragePool"):
        need(rank(of) > 2, "the mean is over no axis", node)
        return Mean(node, of, 2)
    reduction = ops.Reduce(node)
    need(not reduction.does_nothing, "the mean is over no axis", node)
    taken = sorted(reduction.axes)
    need(bool(taken) and taken == list(range(taken[0], rank(of))), "the mean is not over the last axes", node)
    return Mean(node, of, taken[0])


def restores(node: ir.Node, x: ir.Value, axis: int) -> bool:
    """Whether a node gives a mean of a value, which dropped its axes, the shape of one that keeps them.

    Args:
        node: A Reshape or Unsqueeze.
        x: What it is the mean of.
        axis: The first axis of the mean, counted from the front.
    """
    kept = dims(x)[:axis]
    before, after = dims(node.inputs[0]), dims(node.outputs[0])  # type: ignore[arg-type]
    return same_shape(before, kept) and same_shape(after, (*kept, *(1 for _ in range(axis, rank(x)))))


def _without(factors: tuple[ir.Value, ...], factor: ir.Value) -> tuple[ir.Value, ...]:
    rest = list(factors)
    rest.remove(factor)
    return tuple(rest)


def _product(power: int, factors: tuple[ir.Value, ...], factor: ir.Value) -> _Term:
    return _Term(power, tuple(sorted((*factors, factor), key=id)))


def _scaled(terms: _Sum, by: float) -> _Sum:
    return {term: by * coefficient for term, coefficient in terms.items()}


def _added(a: _Sum, b: _Sum) -> _Sum:
    total = {term: a.get(term, 0.0) + b.get(term, 0.0) for term in {**a, **b}}
    return {term: coefficient for term, coefficient in total.items() if coefficient}


def _multiplied(a: _Sum, b: _Sum) -> _Sum:
    total: _Sum = {}
    for left, x in a.items():
        for right, y in b.items():
            term = _Term(left.power + right.power, tuple(sorted((*left.factors, *right.factors), key=id)))
            total[term] = total.get(term, 0.0) + x * y
    return {term: coefficient for term, coefficient in total.items() if coefficient}


def _inverse(terms: _Sum, node: ir.Node) -> _Sum:
    need(len(terms) == 1, "it divides by a sum", node)
    ((term, coefficient),) = terms.items()
    need(not term.factors, "it divides by something else than the root", node)
    return {_Term(-term.power, ()): 1 / coefficient}

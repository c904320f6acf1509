"""What each element along the last dimensions of a value is, in terms of other values: sums of signed products.

Exporters take a head apart, negate one part, put the parts together, and multiply them by tables; each in another way.
Here such nodes are carried out on *lanes*, the places along the last (one or more) dimensions, so that only what is
computed is left, and not how: ``Concat(Neg(x₂), x₁)`` and ``x[[2, 3, 0, 1]] · [-1, -1, 1, 1]`` are the same.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Generator
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    before,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    small_array,
)
from ortopt.graph.symbolic import same_shape
from ortopt.graph.walk import Answers, Question, each, walk
from ortopt.views import arrays

Lanes: TypeAlias = "npt.NDArray[np.int64]"
"""Terms of each lane, [terms, 5, …lanes]: for each its sign, and two pairs of a source and a lane of it.

A sign of 0 is no term; a source of -1 is no factor.
"""

SIGN, SOURCE, LANE, OTHER, OTHER_LANE = range(5)
"""What a term holds: see `Lanes`."""

NONE = -1
MAX_LANES = 4096
MAX_VALUES = 96
MAX_TERMS = 4
MAX_STEPS = 6


class Depth(enum.Enum):
    """How far below the result a value is: an embedding is a sum of products of moved elements."""

    SUM = "sum"
    PRODUCT = "product"
    FACTOR = "factor"


Key: TypeAlias = tuple[ir.Value, int, Depth]
"""A value, how many of its last dimensions are lanes, and how far below the result it is."""


class Source(NamedTuple):
    """A value that is not looked into, and how many of its last dimensions are lanes."""

    value: ir.Value
    rank: int


class Tracer:
    """Finds the lanes of values, and remembers them.

    Args:
        stops: Values that are not looked into.

    Attributes:
        sources: The values that lanes are of, by number.
        widened: Whether dimensions in front of lanes were repeated.
        opened: Those of them that come from lanes of other values.
        factors: The values that are not looked into, below a product.
    """

    def __init__(self, stops: frozenset[ir.Value] = frozenset()) -> None:
        self.stops = stops
        self.sources: list[Source] = []
        self._answers: Answers[Key, Lanes] = Answers()
        self.opened: set[Key] = set()
        self.factors: set[ir.Value] = set()
        self.widened = False

    def lanes(self, value: ir.Value, rank: int, depth: Depth = Depth.FACTOR) -> Lanes:
        """The lanes of a value.

        Args:
            value: The value.
            rank: How many of its last dimensions are lanes; the result has as many dimensions behind its first two.
            depth: How far below the result the value is.

        Raises:
            Refusal: If these dimensions are no numbers.
        """
        too_many = Refusal("too many nodes move its elements", value)
        return walk(self._lanes, (value, rank, depth), unknown=too_many, answers=self._answers)

    @property
    def known(self) -> dict[Key, Lanes]:
        """The lanes of each value that was asked for, by value, number of last dimensions, and depth."""
        return self._answers.known

    def _lanes(self, key: Key) -> Question[Key, Lanes]:
        value, rank, depth = key
        found = None if value in self.stops else (yield from self._opened(value, rank, depth))
        if found is None:
            found = self._source(value, rank)
            if depth is Depth.FACTOR:
                self.factors.add(value)
        else:
            self.opened.add(key)
        return found

    def _opened(self, value: ir.Value, rank: int, depth: Depth) -> Generator[Key, Lanes, Lanes | None]:
        """The lanes of a value by the node that computes it; None where that is no matter of lanes."""
        if is_constant(value):
            return _signs(value, rank)
        node = value.producer()
        if node is None or node.domain or len(self.known) >= MAX_VALUES:
            return None
        move = _OPS.get(node.op_type)
        if move is None:
            return None
        try:
            lanes = yield from move(_Step(self, node, value, rank, depth))
            need(lanes.shape[2:] == inner(value, rank), "the lanes are broadcast", value)
        except (Refusal, ValueError):  # numpy refuses dimensions that do not fit, in a model that does not run
            return None
        return lanes

    def _source(self, value: ir.Value, rank: int) -> Lanes:
        shape = inner(value, rank)
        source = Source(value, rank)
        if source not in self.sources:
            self.sources.append(source)
        lanes = np.full((1, 5, *shape), NONE, np.int64)
        lanes[:, SIGN] = 1
        lanes[:, SOURCE] = self.sources.index(source)
        lanes[:, LANE] = np.arange(math.prod(shape)).reshape(shape)
        return lanes


def inner(value: ir.Value, rank: int) -> tuple[int, ...]:
    """The last dimensions of a value, 1 where it has fewer.

    Raises:
        Refusal: If one is no number, or they are too many elements.
    """
    shape = dims(value)
    last = ((1,) * rank + shape)[len(shape) :]
    known = tuple(dim for dim in last if isinstance(dim, int))
    need(len(known) == rank, "the size of a head is not known", value)
    need(0 < math.prod(known) <= MAX_LANES, "a head has too many elements, or none", value)
    return known


def outer(value: ir.Value, rank: int) -> tuple[Dim, ...]:
    """The dimensions in front of the last ones."""
    shape = dims(value)
    return shape[: max(len(shape) - rank, 0)]


def _signs(value: ir.Value, rank: int) -> Lanes | None:
    """The lanes of a constant vector of -1, 0 and 1: numbers, of no source."""
    own = tuple(array_of(value).shape)
    shape = ((1,) * rank + own)[len(own) :]
    if math.prod(own) > MAX_LANES or math.prod(own) != math.prod(shape):
        return None
    try:
        content = small_array(value).astype(np.float64).reshape(shape)
    except (Refusal, TypeError, ValueError):
        return None
    if not np.isin(content, (-1.0, 0.0, 1.0)).all():
        return None
    lanes = np.full((1, 5, *shape), NONE, np.int64)
    lanes[:, SIGN] = content
    return lanes


def _padded(lanes: Lanes, terms: int) -> Lanes:
    missing = np.full((terms - len(lanes), *lanes.shape[1:]), NONE, np.int64)
    missing[:, SIGN] = 0
    return np.concatenate([lanes, missing])


def _reduced(lanes: Lanes) -> Lanes:
    """The same lanes without terms that are absent in all of them."""
    present = lanes[:, SIGN] != 0
    order = np.argsort(~present, axis=0, kind="stable")
    terms = max(int(present.sum(axis=0).max()), 1)
    need(terms <= MAX_TERMS, "an element is a sum of too many products")
    return np.take_along_axis(lanes, order[:, None], axis=0)[:terms]


def is_plain(lanes: Lanes) -> bool:
    """Whether each lane is one element of one source, or its negative."""
    return (
        len(lanes) == 1
        and bool((lanes[0, SIGN] != 0).all() and (lanes[0, SOURCE] != NONE).all())
        and bool((lanes[0, OTHER] == NONE).all())
    )


# -- one function for each kind of op: the lanes of the result --------------------------------------------------------


class _Step(Struct, frozen=True):
    """A node to carry out on lanes: the result, how many of its dimensions are lanes, how far below it is."""

    tracer: Tracer
    node: ir.Node
    result: ir.Value
    rank: int
    depth: Depth

    def of(self, value: ir.Value, rank: int | None = None, depth: Depth | None = None) -> Key:
        """What to ask the lanes of an operand by; rank and depth as they are of the result."""
        return value, self.rank if rank is None else rank, depth or self.depth

    @property
    def source(self) -> ir.Value:
        """The first operand."""
        (value,) = inputs(self.node, 1)
        return value


def _moved(step: _Step) -> Question[Key, Lanes]:
    """Of all ops that only move elements; what is repeated in front must be in full in what it meets (`widened`)."""
    asked = arrays.operands(step.node, step.result, step.rank)
    parts: list[Lanes] = yield from each(step.of(value, rank) for value, rank in asked)
    if step.node.op_type == "Expand":
        ahead, before = outer(step.result, step.rank), outer(step.source, step.rank)
        step.tracer.widened |= not same_shape(ahead, before)
    terms = max(map(len, parts))
    return arrays.moved(step.node, step.result, step.rank, [_padded(part, terms) for part in parts])


def _neg(step: _Step) -> Question[Key, Lanes]:
    return _negated((yield step.of(step.source)))


def _negated(lanes: Lanes) -> Lanes:
    result = lanes.copy()
    result[:, SIGN] *= -1
    return result


def _mul(step: _Step) -> Question[Key, Lanes]:
    a, b = inputs(step.node, 2)
    for number, other in ((a, b), (b, a)):
        signs = _signs(number, step.rank) if is_constant(number) else None
        if signs is not None:
            return _products(signs, (yield step.of(other)))
    need(step.depth is Depth.PRODUCT, "it is a product", step.node)
    first, second = (yield step.of(a, depth=Depth.FACTOR)), (yield step.of(b, depth=Depth.FACTOR))
    return _products(first, second)


def _products(first: Lanes, second: Lanes) -> Lanes:
    return _reduced(np.stack([_product(one, two) for one in first for two in second]))


def _product(one: Lanes, two: Lanes) -> Lanes:
    """The product of two terms."""
    one, two = np.broadcast_arrays(one, two)
    result = one.copy()
    result[SIGN] = one[SIGN] * two[SIGN]
    free, full = one[SOURCE] == NONE, one[OTHER] != NONE
    extra = (two[SOURCE] != NONE) & (full | ((two[OTHER] != NONE) & ~free)) & (result[SIGN] != 0)
    need(not bool(extra.any()), "an element is a product of more than two")
    for first, second in ((SOURCE, OTHER), (LANE, OTHER_LANE)):
        result[first] = np.where(free, two[first], one[first])
        result[second] = np.where(free, two[second], np.where(full, one[second], two[first]))
    return result


def _sum(step: _Step) -> Question[Key, Lanes]:
    need(step.depth is Depth.SUM, "it is a sum", step.node)
    a, b = inputs(step.node, 2)
    need(leads_to(a, "Mul") and leads_to(b, "Mul"), "no products are added", step.node)
    first, second = (yield step.of(a, depth=Depth.PRODUCT)), (yield step.of(b, depth=Depth.PRODUCT))
    if step.node.op_type == "Sub":
        second = _negated(second)
    shape = np.broadcast_shapes(first.shape[2:], second.shape[2:])
    return _reduced(np.concatenate([np.broadcast_to(part, (*part.shape[:2], *shape)) for part in (first, second)]))


MOVES: Final = arrays.MOVES | {"Neg"}
"""The ops that only move, repeat or negate."""


def leads_to(value: ir.Value, *ops: str) -> bool:
    """Whether a value comes from one of some ops, through a few nodes that only move elements."""
    return is_op(before(value, *MOVES, most=MAX_STEPS - 1).producer(), *ops)


_OPS: Final[dict[str, Callable[[_Step], Question[Key, Lanes]]]] = {
    **dict.fromkeys(arrays.MOVES, _moved),
    "Add": _sum,
    "Mul": _mul,
    "Neg": _neg,
    "Sub": _sum,
}

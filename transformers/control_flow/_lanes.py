"""What an iteration computes, lane by lane: sums of products of gates, states, rows and their linear maps.

A lane is an element along the last axis. Exporters write a cell as one product for all gates or as one for each, over
the row and the state side by side or apart, cut before an activation or behind it: by lanes, all of that is the same.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
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
    need_known,
    optional,
    rank,
    same_dim,
    static_dims,
)
from ortopt.graph.symbolic import product, same_shape, sub
from ortopt.graph.walk import Question, each, walk
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transformers.control_flow._loops import (
    Repeated,
    carried_sizes,
    count,
    is_invariant,
    iterations,
    outside,
    resolved,
    scanned_along,
)
from ortopt.views.index_map import identity, part_along
from ortopt.views.reading import after

Array: TypeAlias = np.ndarray[Any, Any]

ACTIVATIONS: Final = (
    *("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)
"""Activations that the recurrent ops have too, with the same parameters."""

MAX_TERMS: Final = 12
"""A cell has fewer, and a sum that is multiplied out may have any number."""

NOTHING: Final = Refusal("it is computed from too much")


class Rows(NamedTuple):
    """All rows of which an iteration reads one.

    Attributes:
        value: The rows, from outside the loop.
        axis: The axis along which they lie.
        backward: Whether the last one comes first.
    """

    value: ir.Value
    axis: int
    backward: bool


class Lanes(NamedTuple):
    """Lanes of what there is when an iteration begins: of a row, or of a state, which is a number."""

    source: Rows | int
    start: int


class Weight(NamedTuple):
    """A block of a constant matrix, by its first and last lanes of what it multiplies and of what it gives."""

    matrix: ir.Value
    rows: tuple[int, int]
    columns: tuple[int, int]
    is_transposed: bool

    def array(self) -> Array:
        """The block in double precision, [multiplied, given]."""
        matrix = array_of(self.matrix)
        whole = matrix.T if self.is_transposed else matrix
        return whole[slice(*self.rows), slice(*self.columns)].astype(np.float64)


class Product(NamedTuple):
    """What a matrix makes of lanes, or of their product with a gate."""

    multiplied: frozenset[Any]
    weight: Weight


class Activation(NamedTuple):
    """An activation of a sum, by what it is in every lane: equal ones are one."""

    op: str
    parameters: tuple[float, ...]
    of: frozenset[tuple[frozenset[Any], bytes]]

    @property
    def terms(self) -> dict[Term, Array]:
        """The sum."""
        return {term: np.frombuffer(factor) for term, factor in self.of}


Term: TypeAlias = frozenset[Lanes | Product | Activation]
Sum: TypeAlias = Mapping[Term, Array]
"""Terms, each a product of different factors, with a number for each lane, or one for all."""

Asked: TypeAlias = tuple[ir.Value, int, int, tuple[int, bool] | None]
"""A value, the first of its lanes and how many; along which axis rows of it are read, and whether backward."""


class Body(Struct, frozen=True):
    """The body of a loop, and what is known of it.

    Attributes:
        loop: The loop.
        made: How many iterations a Loop makes, where it makes any.
        sizes: What symbols for dimensions of states are.
    """

    loop: Repeated
    made: Dim | None
    sizes: Mapping[str, Dim]

    def dims(self, value: ir.Value) -> tuple[Dim, ...]:
        """The dimensions of a value of the body."""
        return tuple(resolved(dim, self.sizes) for dim in dims(value))


def body_of(loop: Repeated) -> Body:
    """What is known of the body of a loop."""
    return Body(loop, iterations(loop) if loop.before else None, carried_sizes(loop))


def key_of(total: Sum) -> frozenset[tuple[Term, bytes]]:
    """What is equal for equal sums."""
    return frozenset((term, factor.tobytes()) for term, factor in total.items())


def sum_of(value: ir.Value, body: Body) -> Sum:
    """What a value of a body is, by what there is when an iteration begins.

    Args:
        value: A value with lanes of a fixed number.
        body: The body.

    Raises:
        Refusal: If a part of it is not known to be one of a recurrent cell.
    """
    asked: Asked = (value, 0, width_of(value), None)
    return walk(partial(_sum, body=body), asked, unknown=NOTHING)


def width_of(value: ir.Value) -> int:
    """How many lanes a value has.

    Raises:
        Refusal: If that is not fixed.
    """
    width = (dims(value) or (None,))[-1]
    if not isinstance(width, int):
        raise Refusal("its last dimension is not fixed", value)
    return width


def _sum(asked: Asked, body: Body) -> Question[Asked, Sum]:
    value, start, size, along = asked
    loop = body.loop
    if is_constant(value):
        return _constant(value, start, size)
    node = value.producer()
    if along is not None:
        try:
            need(node is not None, "it is given")
            return (yield from _computed(need_known(node, "it is given"), asked, body))
        except Refusal:
            return _one(Lanes(Rows(value, *along), start))
    if value.graph is not loop.body:
        raise Refusal("what it reads from outside is no constant", value)
    if node is not None:
        return (yield from _computed(node, asked, body))
    rows = _scanned(value, body.loop)
    if rows is not None:
        return (yield rows.value, start, size, rows[1:])
    state = list(loop.body.inputs).index(value) - loop.before
    need(0 <= state < loop.states, "it depends on the number of the iteration", value)
    fixed = outside(value, loop) if is_invariant(state, loop) else None
    return _one(Lanes(state, start)) if fixed is None else (yield fixed, start, size, None)


def _one(factor: Lanes | Product | Activation) -> Sum:
    return {frozenset((factor,)): np.ones(1)}


def _constant(value: ir.Value, start: int, size: int) -> Sum:
    content = array_of(value)
    need(content.dtype == np.float32, "a constant is of another type", value)
    flat = content.astype(np.float64).reshape(-1)
    if flat.size > 1:
        need(flat.size == content.shape[-1] >= start + size, "a constant has rows of its own", value)
        flat = flat[start : start + size]
    return {frozenset(): flat}


def _computed(node: ir.Node, asked: Asked, body: Body) -> Question[Asked, Sum]:
    """What a node gives; along the rows, if rows are asked about."""
    value, start, size, along = asked
    if is_op(node, "Gather") and along is None:
        rows = _gathered(node, body)
        return (yield rows.value, start, size, rows[1:])
    if is_op(node, "MatMul", "Gemm"):
        return (yield from _product(node, asked, body))
    if is_op(node, "Concat"):
        part, start = _part_of(node, start, size)
        return (yield part, start, size, along)
    operands = inputs(node, len(node.inputs))
    if is_op(node, "Slice", "Split"):
        taken = part_along(after(identity(operands[0]), node, value), rank(operands[0]) - 1)
        return (yield operands[0], taken.start + start, size, along)
    if is_op(node, "Transpose"):
        order = ops.Transpose(node).order
        need(along is not None and order[-1] == len(order) - 1, "lanes are moved", node)
        assert along is not None
        return (yield operands[0], start, size, (order[along[0]], along[1]))
    if is_op(node, *RESHAPING):
        need(along is None and same_dim(width_of(operands[0]), width_of(value)), "lanes are moved", node)
        return (yield operands[0], start, size, along)
    for operand in operands:
        need(
            is_constant(operand) or same_shape(body.dims(operand), body.dims(value)), "an operand is repeated", operand
        )
    sums: list[Sum] = yield from each((operand, start, size, along) for operand in operands)
    return _combined(node, sums)


def _part_of(node: ir.Node, start: int, size: int) -> tuple[ir.Value, int]:
    """The operand of a Concat in which lanes lie, and where in it they begin."""
    need(ops.Concat(node).is_last, "lanes are joined along another axis", node)
    for part in inputs(node, len(node.inputs)):
        if start < (width := width_of(part)):
            need(start + size <= width, "lanes of several operands are read as one", node)
            return part, start
        start -= width
    raise Refusal("it has fewer lanes", node)


# -- rows -------------------------------------------------------------------------------------------------------------


def _scanned(value: ir.Value, loop: Repeated) -> Rows | None:
    """The rows of a Scan that a value of its body is one of."""
    for position, (whole, row) in enumerate(loop.scanned_inputs):
        if row is value and whole is not None:
            axis, backward = scanned_along(loop, "input", position)
            need(axis % rank(whole) < rank(whole) - 1, "its rows have no lanes", whole)
            return Rows(whole, axis % rank(whole), backward)
    return None


def _gathered(node: ir.Node, body: Body) -> Rows:
    """The rows that a Gather reads, in order."""
    value, index = inputs(node, 2)
    need(value.graph is not body.loop.body, "its rows are made in the loop", node)
    axis, size = ops.Gather(node).axis, dims(value)[ops.Gather(node).axis]
    need(axis < rank(value) - 1 and same_dim(product(dims(index)), 1), "it reads no row", node)
    counted, made = count(index, body.loop), body.made
    need(made is not None and same_dim(made, size), "the loop may read a part of the rows only", body.loop.node)
    counted = need_known(counted, "the iteration does not say which row it takes", node)
    backward = counted.step == -1
    first = (-1, sub(size, 1)) if backward else (0,)
    in_order = abs(counted.step) == 1 and any(same_dim(counted.start, one) for one in first)
    need(in_order, "the iteration takes another row than its own", node)
    return Rows(value, axis, backward)


# -- arithmetic -------------------------------------------------------------------------------------------------------


def _product(node: ir.Node, asked: Asked, body: Body) -> Question[Asked, Sum]:
    """The products of all parts of what a node multiplies, and what it adds."""
    _, start, size, along = asked
    factor, matrix = inputs(node, 2)
    matrix, added = outside(matrix, body.loop), optional(node, 2)
    is_transposed = False
    if is_op(node, "Gemm"):
        gemm = ops.Gemm(node)
        need(gemm.alpha == gemm.beta == 1.0 and not gemm.transposes_a, "the product is scaled or transposed", node)
        is_transposed = gemm.transposes_b
    need(is_constant(matrix) and len(static_dims(matrix)) == 2, "what it multiplies by is no constant matrix", matrix)
    terms, first = [], 0
    for part in _parts(factor) if along is None else (factor,):
        end = first + width_of(part)
        weight = Weight(matrix, (first, end), (start, start + size), is_transposed)
        multiplied = frozenset((Lanes(Rows(part, *along), 0),)) if along else (yield from _multiplied(part, body))
        terms.append(_one(Product(multiplied, weight)))
        first = end
    if added is not None:
        terms.append((yield outside(added, body.loop), start, size, None))
    return _added(terms)


def _parts(value: ir.Value) -> Sequence[ir.Value]:
    """The values that lie side by side in the lanes of one."""
    node = value.producer()
    return inputs(node, len(node.inputs)) if is_op(node, "Concat") and ops.Concat(node).is_last else (value,)


def _multiplied(value: ir.Value, body: Body) -> Generator[Asked, Sum, Term]:
    """What a matrix multiplies: a row, a state, or a state by a gate."""
    at = before(value, *RESHAPING, "Identity")
    node = at.producer()
    rows = _gathered(node, body) if is_op(node, "Gather") and node.graph is body.loop.body else _scanned(at, body.loop)
    if rows is not None:
        need(same_dim(width_of(at), width_of(value)), "lanes are moved", value)
        return frozenset((Lanes(rows, 0),))
    total = yield value, 0, width_of(value), None
    need(len(total) == 1, "a sum is multiplied by a matrix", value)
    ((term, factor),) = total.items()
    need(bool(np.all(factor == 1)), "what is multiplied by a matrix is scaled", value)
    return term


def _combined(node: ir.Node, sums: Sequence[Sum]) -> Sum:
    """What an elementwise node makes of its operands."""
    if is_op(node, "Add", "Sum"):
        return _added(sums)
    if is_op(node, "Identity"):
        return sums[0]
    if is_op(node, "Neg"):
        return _scaled(sums[0], -1.0)
    if is_op(node, "Sub"):
        return _added([sums[0], _scaled(sums[1], -1.0)])
    if is_op(node, "Mul"):
        return _times(sums[0], sums[1])
    need(is_op(node, *ACTIVATIONS), f"{node.op_type} is no part of a recurrent cell", node)
    parameters = tuple(ops.Activation(node).parameters.values())
    return _one(Activation(node.op_type, parameters, key_of(sums[0])))


def _added(sums: Iterable[Sum]) -> Sum:
    total: dict[Term, Array] = {}
    for each_ in sums:
        for term, factor in each_.items():
            total[term] = total[term] + factor if term in total else factor
    need(len(total) <= MAX_TERMS, "it is a sum of too many terms")
    return {term: factor for term, factor in total.items() if np.any(factor)}


def _scaled(total: Sum, by: float) -> Sum:
    return {term: factor * by for term, factor in total.items()}


def _times(one: Sum, other: Sum) -> Sum:
    pairs = [(a, b) for a in one for b in other]
    need(all(not a & b for a, b in pairs), "a factor is squared")
    return _added({a | b: one[a] * other[b]} for a, b in pairs)

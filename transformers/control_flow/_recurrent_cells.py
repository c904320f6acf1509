"""Cells of recurrent ops among what an iteration computes: which gate multiplies what decides which gate it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import Refusal, dims, need, need_float32, need_known, same_dim
from ortopt.graph.symbolic import product
from ortopt.transformers.control_flow._lanes import (
    Activation,
    Array,
    Body,
    Lanes,
    Product,
    Rows,
    Sum,
    Term,
    Weight,
    body_of,
    key_of,
    sum_of,
    width_of,
)
from ortopt.transformers.control_flow._loops import Repeated, dims_made, is_invariant

_NO_TERM: Final[Term] = frozenset()


class Gate(Struct, frozen=True):
    """An activation of what matrices make of rows and of the state, and of a bias.

    Attributes:
        activation: The op, and its parameters.
        of_rows: By what rows are read of, the matrix [lanes of the row, lanes of the state].
        of_state: The matrix [lanes of the state, lanes of the state].
        bias: The bias.
        reset_bias: The bias that the reset gate multiplies too.
    """

    activation: tuple[str, tuple[float, ...]]
    of_rows: Mapping[Rows, Array]
    of_state: Array
    bias: Array
    reset_bias: Array

    def negated(self) -> Gate:
        """The gate whose sum with this one is 1.

        Raises:
            Refusal: If it has another activation.
        """
        op, parameters = self.activation
        is_even = op == "Sigmoid" or (op == "HardSigmoid" and parameters[1] == _HALF)
        need(is_even, f"1 - {op} is another activation")
        rows = {rows: -matrix for rows, matrix in self.of_rows.items()}
        return Gate(self.activation, rows, -self.of_state, -self.bias, -self.reset_bias)


_HALF: Final = 0.5

_BOUNDED: Final = frozenset({"HardSigmoid", "Sigmoid", "Softsign", "Tanh"})


class Cell(Struct, frozen=True):
    """A cell of a recurrent op.

    Attributes:
        op: LSTM, GRU or RNN.
        states: The states of the loop that it is about: what it gives, and an LSTM's memory.
        gates: Its gates in the op's order.
        activations: Its activations in the op's order.
        linear_before_reset: Whether a GRU's reset gate multiplies what the matrix makes of the state.
    """

    op: str
    states: tuple[int, ...]
    gates: tuple[Gate, ...]
    activations: tuple[tuple[str, tuple[float, ...]], ...]
    linear_before_reset: bool = False

    @property
    def rows(self) -> tuple[Rows, ...]:
        """What it reads rows of."""
        read = {rows for gate in self.gates for rows in gate.of_rows}
        return tuple(sorted(read, key=lambda rows: (rows.value.name or "", rows.axis)))

    @property
    def size(self) -> int:
        """The number of lanes of its state."""
        return len(self.gates[0].bias)


def cell_of(loop: Repeated) -> Cell:
    """The first cell of a recurrent op that an iteration computes.

    Args:
        loop: The loop.

    Raises:
        Refusal: If there is none.
    """
    refusals, body = [], body_of(loop)
    for state in range(loop.states):
        if loop.entry(state).dtype in _FLOATS and not is_invariant(state, loop):
            try:
                return _checked(_cell(state, body), body)
            except Refusal as refusal:
                refusals.append(refusal)
    raise refusals[0] if refusals else Refusal("no state is a recurrence of floats", loop.node)


_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


def _cell(state: int, body: Body) -> Cell:
    loop = body.loop
    need_float32(loop.entry(state), "the kernel is")
    need(len(dims(loop.entry(state))) > 0, "a state is a number", loop.entry(state))
    total = sum_of(loop.returned(state), body)
    size = width_of(loop.entry(state))
    need(
        all(np.all(factor == factor[0]) and abs(factor[0]) == 1 for factor in total.values()),
        "a gate is scaled",
        loop.returned(state),
    )
    match sorted(map(len, total)):
        case [1]:
            (gate,) = _activations(next(iter(total)), 1)
            read = _gate(gate, state, size)
            return Cell("RNN", (state,), (read,), (read.activation,))
        case [2]:
            return _lstm(state, total, size, body)
        case [1, 2, 2]:
            return _gru(state, total, size)
    raise Refusal("it is no sum of gates and states that a recurrent op has", loop.returned(state))


def _checked(cell: Cell, body: Body) -> Cell:
    """Refuse a cell that the op would compute in another shape, or of rows in several orders."""
    loop = body.loop
    bounded = all(op in _BOUNDED for op, _ in cell.activations)
    need(bounded, "an activation without bounds may overflow, and the kernels give numbers for NaN", loop.node)
    need(bool(cell.rows), "it reads no rows", loop.node)
    need(len({rows.backward for rows in cell.rows}) == 1, "rows are read in several orders", loop.node)
    count = product(body.dims(loop.entry(cell.states[0]))[:-1])
    for state in cell.states:
        initial = need_known(loop.initial(state), "it has no initial state", loop.node)
        begin, *others = dims_made(initial), body.dims(loop.entry(state)), body.dims(loop.returned(state))
        for shape in (begin, *others):
            batch, lanes = shape[:-1], shape[-1]
            alike = same_dim(lanes, cell.size) and same_dim(product(batch), count) and len(batch) <= 2
            need(alike and batch[:-1] in ((), (1,)), "a state has another shape than the op gives it", initial)
            need(len(shape) == len(begin), "a state has another rank than it begins with", initial)
    for rows in cell.rows:
        shape = dims(rows.value)
        sequences = product(dim for axis, dim in enumerate(shape[:-1]) if axis != rows.axis)
        need(len(shape) <= 3 and same_dim(sequences, count), "rows are repeated", rows.value)
    return cell


def _activations(term: Term, count: int) -> tuple[Activation, ...]:
    found = [factor for factor in term if isinstance(factor, Activation)]
    need(len(found) == len(term) == count, "a product has another number of gates than a recurrent op")
    return tuple(sorted(found, key=_order))


def _order(activation: Activation) -> list[tuple[str, tuple[int, int]]]:
    """What tells two activations apart in every process alike: what they read of which matrix."""
    made = (one.weight for term in activation.terms for one in term if isinstance(one, Product))
    return sorted((weight.matrix.name or "", weight.columns) for weight in made)


def _lanes(term: Term) -> Lanes | None:
    """The lanes in a product."""
    return next((factor for factor in term if isinstance(factor, Lanes)), None)


def _is_state(lanes: Lanes | None, state: int) -> bool:
    return lanes is not None and lanes.source == state and lanes.start == 0


def _lstm(state: int, total: Sum, size: int, body: Body) -> Cell:
    """``h = o · tanh(c)`` where ``c = f · c + i · g``."""
    loop, ((term, factor),) = body.loop, total.items()
    need(bool(np.all(factor == 1)), "a gate is scaled")
    refusals = [Refusal("it is no LSTM")]
    for output, shown in permutations(_activations(term, 2)):
        memory = shown.terms
        kept = next((one for one in memory if _lanes(one) is not None), _NO_TERM)
        number = getattr(_lanes(kept), "source", None)
        if not isinstance(number, int) or number == state or len(memory) != 2:
            continue
        need(all(np.all(one == 1) for one in memory.values()), "the memory is scaled")
        need(_is_state(_lanes(kept), number) and width_of(loop.entry(number)) == size, "it remembers something else")
        need(key_of(sum_of(loop.returned(number), body)) == shown.of, "it shows another memory than it keeps")
        (added,) = (one for one in memory if one is not kept)
        forget = _gate(_activations(kept - {_lanes(kept)}, 1)[0], state, size)
        for admit, new in permutations(_activations(added, 2)):
            gates = [_gate(one, state, size) for one in (admit, output)]
            if any(gate.activation != forget.activation for gate in gates):
                refusals.append(Refusal("its gates have several activations"))
                continue
            content = _gate(new, state, size)
            order = (gates[0], gates[1], forget, content)
            shown_by = (shown.op, shown.parameters)
            return Cell("LSTM", (state, number), order, (forget.activation, content.activation, shown_by))
    raise refusals[-1]


def _gru(state: int, total: Sum, size: int) -> Cell:
    """``h = n - z · n + z · h``, or ``h - z · h + z · n``, whose gate is 1 - z."""
    signs = {term: float(factor[0]) for term, factor in total.items()}
    alone, *pairs = sorted(total, key=len)
    kept = next((term for term in pairs if _is_state(_lanes(term), state)), _NO_TERM)
    need(bool(kept), "no gate multiplies the state")
    (mixed,) = (term for term in pairs if term is not kept)
    update = _activations(kept - {_lanes(kept)}, 1)[0]
    gate = _gate(update, state, size)
    is_negated = _is_state(_lanes(alone), state)
    less, more = (kept, mixed) if is_negated else (mixed, kept)
    need(signs[alone] == signs[more] == 1 and signs[less] == -1, "it is no mean of a state and another")
    need(update in mixed, "two gates mix the states")
    (new,) = _activations(mixed - {update}, 1)
    need(is_negated or new in alone, "it is no mean of a state and another")
    content, reset, linear = _content(new, state, size)
    other = _gate(reset, state, size)
    need(other.activation == gate.activation, "its gates have several activations")
    gates = (gate.negated() if is_negated else gate, other, content)
    return Cell("GRU", (state,), gates, (gate.activation, content.activation), linear)


def _content(new: Activation, state: int, size: int) -> tuple[Gate, Activation, bool]:
    """What a GRU would add to its state, the reset gate, and whether that multiplies behind the matrix."""
    resets = {factor for term in new.terms for factor in _gates_in(term)}
    need(len(resets) == 1, "it has no reset gate")
    (reset,) = resets
    own = Lanes(state, 0)
    plain: dict[Term, Array] = {}
    reset_bias, linear = np.zeros(size), None
    for term, factor in new.terms.items():
        multiplied = next((one for one in term if isinstance(one, Product)), None)
        if term == {reset}:
            reset_bias = reset_bias + factor
            linear = True
        elif reset in term and multiplied is not None:
            need(multiplied.multiplied == {own}, "the reset gate multiplies something else")
            plain[frozenset((multiplied,))] = factor
            linear = True
        elif multiplied is not None and reset in multiplied.multiplied:
            need(linear is None and multiplied.multiplied == {reset, own}, "the reset gate multiplies something else")
            plain[frozenset((Product(frozenset((own,)), multiplied.weight),))] = factor
            linear = False
        else:
            need(multiplied is None or own not in multiplied.multiplied, "a part of the state is not reset")
            plain[term] = factor
    need(linear is not None, "it has no reset gate")
    content = _gate(Activation(new.op, new.parameters, key_of(plain)), state, size)
    return _with_reset_bias(content, reset_bias), reset, bool(linear)


def _gates_in(term: Term) -> Sequence[Activation]:
    inner = [one for factor in term if isinstance(factor, Product) for one in factor.multiplied]
    return [one for one in (*term, *inner) if isinstance(one, Activation)]


def _with_reset_bias(gate: Gate, bias: Array) -> Gate:
    return Gate(gate.activation, gate.of_rows, gate.of_state, gate.bias, bias)


def _gate(activation: Activation, state: int, size: int) -> Gate:
    """A gate that is a linear map of rows and of a state."""
    of_rows: dict[Rows, Array] = {}
    of_state, bias = np.zeros((size, size)), np.zeros(size)
    for term, factor in activation.terms.items():
        if term == _NO_TERM:
            bias = bias + factor
            continue
        need(len(term) == 1, "a gate depends on another")
        (made,) = term
        if not isinstance(made, Product):
            raise Refusal("a gate reads lanes that no matrix multiplies")
        (read,) = made.multiplied if len(made.multiplied) == 1 else (None,)
        if not isinstance(read, Lanes) or read.start:
            raise Refusal("a matrix multiplies something else than rows or a state")
        matrix = _scaled(made.weight, factor)
        if isinstance(read.source, Rows):
            need(read.source not in of_rows, "several matrices multiply the rows")
            of_rows[read.source] = matrix
        else:
            need(read.source == state, "a gate reads another state")
            need(not np.any(of_state), "several matrices multiply the state")
            of_state = matrix
    return Gate((activation.op, activation.parameters), of_rows, of_state, bias, np.zeros(size))


def _scaled(weight: Weight, factor: Array) -> Array:
    return weight.array() * factor

"""What of a loop is an LSTM, a GRU or a simple recurrent cell, and the op in place of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph.detached import new_graph, new_nodes
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, attribute, dims, is_never_zero, is_op, need, opset, rank, splat, users
from ortopt.linear.weights import rounded
from ortopt.onnx_ir_internals import is_needed
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM, RESHAPE_ALLOWS_ZERO_FROM
from ortopt.transformer import Context
from ortopt.transformers.control_flow._lanes import Array, Rows
from ortopt.transformers.control_flow._loops import Repeated, copied, repeated, scanned_along
from ortopt.transformers.control_flow._recurrent_cells import Cell, cell_of
from ortopt.transformers.control_flow._spelled_recurrences import Given, reversed_rows, spelled_out

_LARGEST_SUM: Final = 1e30
"""What weights of 1 make of numbers whose sum is less, beside biases and states, is far from infinite."""

_DEFAULTS: Final = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}

SIMPLE: Final = Form("", "RNN", "in place of a loop")


class Recurrence(Struct, frozen=True):
    """What of a loop is a recurrence.

    Attributes:
        loop: The loop.
        cell: What it computes in each iteration.
        shown: The scanned outputs, of all outputs, that collect what the cell gives.
        is_read: Whether something else in the body reads what the cell gives.
        joined: What joins sequences of tensors to which iterations append what the cell gives.
    """

    loop: Repeated
    cell: Cell
    shown: tuple[int, ...]
    is_read: bool
    joined: tuple[ir.Node, ...]

    @property
    def batch(self) -> Dim:
        """How many sequences there are."""
        return _shape(self.cell.rows[0])[1]


def recurrence_of(node: ir.Node) -> Recurrence:
    """The recurrence that a loop is, or holds."""
    loop = repeated(node)
    need(opset(node) >= BOUNDS_ARE_INPUTS_FROM["Slice"], "before opset 10 no Slice goes backward", node)
    cell = cell_of(loop)
    if cell.op == SIMPLE.op_type:
        check_faster(node, SIMPLE, batch=_shape(cell.rows[0])[1])
    given = copied(loop.returned(cell.states[0]))
    outputs = range(loop.states, len(node.outputs))
    shown = tuple(output for output in outputs if copied(loop.returned(output)) is given)
    joined = {state: _joins(loop, state, given) for state in range(loop.states)}
    gone = {*cell.states, *shown, *(state for state, nodes in joined.items() if nodes)}
    others = [place for place in range(len(node.outputs)) if place not in gone]
    is_read = _reads_given(loop, others, cell, given)
    is_whole = not any(is_needed(node.outputs[place]) for place in others)
    need(is_whole or bool(loop.before), "other results of the Scan would stay", node)
    return Recurrence(loop, cell, shown, is_read and not is_whole, tuple(chain(*joined.values())))


def _joins(loop: Repeated, state: int, given: ir.Value) -> list[ir.Node]:
    """What joins the sequence of tensors to which each iteration appends what a cell gives; empty if it is none."""
    append, initial, result = copied(loop.returned(state)).producer(), loop.initial(state), loop.node.outputs[state]
    if not is_op(append, "SequenceInsert") or initial is None or result.is_graph_output():
        return []
    appends = [copied(value) for value in append.inputs if value is not None] == [loop.entry(state), given]
    is_alone = len(users(loop.entry(state))) == len(users(append.outputs[0])) + append.outputs[0].is_graph_output() == 1
    if not (appends and is_alone and is_op(initial.producer(), "SequenceEmpty")):
        return []
    joins = users(result)
    stacks = all(is_op(join, "ConcatFromSequence") and attribute(join, "new_axis", 0) for join in joins)
    return joins if stacks else []


def _reads_given(loop: Repeated, others: Sequence[int], cell: Cell, given: ir.Value) -> bool:
    """Whether anything else in a body reads what a cell gives.

    Raises:
        Refusal: If something else reads what the cell begins with, or an LSTM's memory.
    """
    pending = loop.required_for(others)
    begins = {loop.entry(state) for state in cell.states}
    is_read, seen = False, set[ir.Value]()
    while pending:
        value = pending.pop()
        if value is given:
            is_read = True
        elif value not in seen:
            need(value not in begins, "something else reads a state of the cell", value)
            seen.add(value)
            pending += loop.read_for(value)
    return is_read


# -- building ---------------------------------------------------------------------------------------------------------


def fused(found: Recurrence, context: Context) -> list[ir.Node]:
    """Put the op in front of the loop, and let what the cell gave come from it."""
    loop, cell = found.loop, found.cell
    node, version = loop.node, opset(loop.node)
    wanted = [
        bool(found.shown or found.joined) or found.is_read,
        *(is_needed(node.outputs[state]) for state in cell.states),
    ]
    sequence, *last = _results(found, wanted, context)
    replacements = {}
    for state, value in zip(cell.states, last, strict=True):
        if is_needed(node.outputs[state]):
            replacements[node.outputs[state]] = _unbatched(value, 0, rank(loop.entry(state)) - 2, version)
    rows = _unbatched(sequence, 1, rank(loop.entry(cell.states[0])) - 2, version)
    backward = cell.rows[0].backward
    for output in found.shown:
        axis, reverses = scanned_along(loop, "output", output - loop.states)
        value = reversed_rows(rows, version).outputs[0] if backward != reverses else rows
        replacements[node.outputs[output]] = _along(value, axis, rank(node.outputs[output]))
    given = rank(copied(loop.returned(cell.states[0])))
    for join in found.joined:
        value = reversed_rows(rows, version).outputs[0] if backward else rows
        replacements[join.outputs[0]] = _along(value, ops.OneAxis(join).axis_of(given + 1), given + 1)
    if not found.is_read:
        return context.replace(replacements, node, (node,))
    read = _sized(rows, found)
    read = reversed_rows(read, version).outputs[0] if backward else read
    before = new_nodes([*replacements.values(), read])
    context.edit.insert(before, node, (node,))
    context.replace(replacements, node, (node,))
    return [*before, *_read_rows(found, read, context)]


def _read_rows(found: Recurrence, rows: ir.Value, context: Context) -> list[ir.Node]:
    """Let a body read the cell's results, and keep its states as they are: nothing needs them any more."""
    loop, edit = found.loop, context.edit
    given = copied(loop.returned(found.cell.states[0]))
    number, producer = loop.body.inputs[0], given.producer()
    need(rank(number) == 0 and producer is not None, "the number of the iteration is no scalar", number)
    assert producer is not None
    freed = [value.producer() for value in map(loop.returned, found.cell.states)]
    for state in found.cell.states:
        kept = ir.node("Identity", [loop.entry(state)])
        edit.append(loop.body, kept)
        edit.set_output(loop.body, loop.before_results + state, kept.outputs[0])
    taken = ir.node("Gather", [rows, number], {"axis": 0}).outputs[0]
    added = context.replace({given: taken}, producer, (producer,))
    edit.sweep([node for node in freed if node is not None and node.graph is not None])
    return added


def _results(found: Recurrence, wanted: Sequence[bool], context: Context) -> list[ir.Value]:
    """The results of the op: of all steps [steps, batch, size], and of the last [batch, size]."""
    cell, loop = found.cell, found.loop
    version = opset(loop.node)
    steps, batch, _ = _shape(cell.rows[0])
    x = _joined([_steps_first(rows, version) for rows in cell.rows])
    begins = [_batched(loop.initial(state), version) for state in cell.states]
    of_rows, of_state, bias = (constant(each) for each in _weights(cell, loop))
    given = Given(x, of_rows, of_state, bias, tuple(begins), _told_batch(loop.entry(cell.states[0]), batch))
    outputs = [ir.Value(name=None if each else "") for each in wanted]
    operands = [given.x, given.of_rows, given.of_state, given.bias, None, *given.begins]
    node = ir.Node("", cell.op, operands, _attributes(cell), outputs=outputs)
    kept = [place for place, is_wanted in enumerate(wanted) if is_wanted]
    squeezes = [ops.node_along("Squeeze", outputs[place], [0 if place else 1], version) for place in kept]
    spelled, results = spelled_out(cell, given, version, context.edit.fresh_name)
    branches = {
        "then_branch": new_graph([], [each.outputs[0] for each in squeezes], [node, *squeezes], "op"),
        "else_branch": new_graph([], [results[place] for place in kept], spelled, "steps"),
    }
    conditions = [_is_tame(x, cell), *(_is_tame(state, cell) for state in begins if not _is_fixed(state))]
    if not all(is_never_zero(dim, loop.node) for dim in (steps, batch)):
        conditions.append(_cast_to_bool(ir.node("Size", [x]).outputs[0]))
    condition = conditions[0]
    for other in conditions[1:]:
        condition = ir.node("And", [condition, other]).outputs[0]
    chosen = iter(ir.node("If", [condition], branches, num_outputs=len(kept)).outputs)
    return [next(chosen) if is_wanted else value for is_wanted, value in zip(wanted, outputs, strict=True)]


def _told_batch(state: ir.Value, batch: Dim) -> Dim:
    """The batch as a body declares it of a state: what a Loop gives of no steps goes by that, true or not."""
    told = state.shape
    declared = told[-2] if told is not None and len(told) > 1 else None
    return declared if isinstance(declared, int) else batch


def _cast_to_bool(value: ir.Value) -> ir.Value:
    return ir.node("Cast", [value], {"to": ir.DataType.BOOL}).outputs[0]


def _is_tame(value: ir.Value, cell: Cell) -> ir.Value:
    """Whether a value has neither a NaN nor numbers of which a sum may become infinite."""
    largest = max(
        float(np.abs(each).max(initial=1.0)) for gate in cell.gates for each in (*gate.of_rows.values(), gate.of_state)
    )
    total = ir.node("ReduceL1", [value], {"keepdims": 0}).outputs[0]
    return ir.node("Less", [total, constant(np.array(_LARGEST_SUM / largest, np.float32))]).outputs[0]


def _is_fixed(state: ir.Value) -> bool:
    """Whether a state is one finite number everywhere."""
    node = state.producer()
    try:
        return abs(float(splat(node.inputs[0] if node is not None and node.graph is None else state))) < 1
    except Refusal:
        return False


def _weights(cell: Cell, loop: Repeated) -> list[Array]:
    """The weights of the rows, those of the state, and the bias, in the op's order of gates."""
    widths = [_shape(rows)[2] for rows in cell.rows]
    of_rows = [
        np.concatenate(
            [
                gate.of_rows.get(rows, np.zeros((width, cell.size)))
                for rows, width in zip(cell.rows, widths, strict=True)
            ]
        ).T
        for gate in cell.gates
    ]
    of_state = [gate.of_state.T for gate in cell.gates]
    bias = [gate.bias for gate in cell.gates] + [gate.reset_bias for gate in cell.gates]
    joined = (np.concatenate(each)[np.newaxis] for each in (of_rows, of_state, bias))
    return [rounded(np.ascontiguousarray(each), ir.DataType.FLOAT, loop.node) for each in joined]


def _attributes(cell: Cell) -> list[ir.Attr]:
    """The attributes of the op, as far as they are not the defaults."""
    settings: list[ir.Attr] = [ir.AttrInt64("hidden_size", cell.size)]
    names = tuple(name for name, _ in cell.activations)
    parameters = [numbers for _, numbers in cell.activations]
    if names != _DEFAULTS[cell.op]:
        settings.append(ir.AttrStrings("activations", names))
        for place, name in enumerate(("activation_alpha", "activation_beta")):
            if listed := [numbers[place] for numbers in parameters if len(numbers) > place]:
                settings.append(ir.AttrFloat32s(name, listed))
    if cell.linear_before_reset:
        settings.append(ir.AttrInt64("linear_before_reset", 1))
    if cell.rows[0].backward:
        settings.append(ir.AttrString("direction", "reverse"))
    return settings


# -- shapes -----------------------------------------------------------------------------------------------------------


def _shape(rows: Rows) -> tuple[ir.SymbolicDim | int, ir.SymbolicDim | int, int]:
    """The steps, the batch and the lanes of what rows are read of."""
    shape = list(dims(rows.value))
    steps, lanes = shape.pop(rows.axis), shape.pop()
    assert isinstance(lanes, int)
    return steps, shape[0] if shape else 1, lanes


def _steps_first(rows: Rows, version: int) -> ir.Value:
    """Rows as the op reads them: [steps, batch, lanes]."""
    if rank(rows.value) == 2:
        return ops.unsqueezed(rows.value, [1], version)
    return ir.node("Transpose", [rows.value], {"perm": [1, 0, 2]}).outputs[0] if rows.axis else rows.value


def _sized(rows: ir.Value, found: Recurrence) -> ir.Value:
    """Results of all steps by the sizes of what was read: those that an If gives are not inferred."""
    read, version = found.cell.rows[0], opset(found.loop.node)
    if version < RESHAPE_ALLOWS_ZERO_FROM or rank(found.loop.entry(found.cell.states[0])) != 2:
        return rows
    sizes = ir.node("Shape", [_steps_first(read, version)]).outputs[0]
    outer = ops.slice_node(sizes, [(0, 0, 2, 1)], version).outputs[0]
    shape = ir.node("Concat", [outer, constant([found.cell.size])], {"axis": 0}).outputs[0]
    sized = ir.node("Reshape", [rows, shape], {"allowzero": 1}).outputs[0]
    batch = _shape(read)[1]
    if not isinstance(batch, int):
        return sized
    # ONNX Runtime does not follow sizes through a shape: what the loop gives of no steps goes by what it infers
    return ir.node("Reshape", [sized, constant([0, batch, found.cell.size])]).outputs[0]


def _joined(values: Sequence[ir.Value]) -> ir.Value:
    return values[0] if len(values) == 1 else ir.node("Concat", values, {"axis": 2}).outputs[0]


def _batched(state: ir.Value | None, version: int) -> ir.Value:
    """A state as the op begins with it: [1, batch, size]."""
    if state is None:
        raise Refusal("it has no initial state")
    missing = 3 - rank(state)
    return ops.unsqueezed(state, list(range(missing)), version) if missing else state


def _unbatched(value: ir.Value, axis: int, more: int, version: int) -> ir.Value:
    """A result of the op in the rank that the loop gives it.

    Args:
        value: The result, with a batch and lanes as its last axes.
        axis: The axis of the batch.
        more: How many axes the loop has more there; -1 where it has no batch.
        version: The opset.
    """
    if more == 0:
        return value
    return ops.squeezed(value, [axis], version) if more < 0 else ops.unsqueezed(value, [axis], version)


def _along(rows: ir.Value, axis: int, size: int) -> ir.Value:
    """Rows along another axis than the first."""
    if axis % size == 0:
        return rows
    order = list(range(1, size))
    order.insert(axis % size, 0)
    return ir.node("Transpose", [rows], {"perm": order}).outputs[0]

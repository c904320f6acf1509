"""LSTM, GRU and RNN in standard ops, step by step: for what a kernel of the op does not compute.

Lanes come before the batch here: so the op's own weights multiply them as they are, and need no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.detached import constant, new_graph
from ortopt.graph.match import Dim
from ortopt.transformers.control_flow._recurrent_cells import Cell

_PARAMETERS = ("alpha", "beta")


class Given(Struct, frozen=True):
    """What a recurrent op is given.

    Attributes:
        x: The rows [steps, batch, lanes].
        of_rows: The weights of the rows [1, gates * size, lanes].
        of_state: The weights of the state [1, gates * size, size].
        bias: Both biases [1, 2 * gates * size].
        begins: The states that it begins with [1, batch, size].
        batch: The number of sequences.
    """

    x: ir.Value
    of_rows: ir.Value
    of_state: ir.Value
    bias: ir.Value
    begins: tuple[ir.Value, ...]
    batch: Dim


class _Nodes:
    """Nodes behind one another, and the results that they give."""

    def __init__(self, version: int) -> None:
        self.nodes: list[ir.Node] = []
        self.version = version

    def add(self, node: ir.Node) -> ir.Value:
        self.nodes.append(node)
        return node.outputs[0]

    def op(self, name: str, *operands: ir.Value) -> ir.Value:
        return self.add(ir.node(name, operands))

    def turned(self, value: ir.Value, *order: int) -> ir.Value:
        return self.add(ir.node("Transpose", [value], {"perm": order}))

    def along(self, name: str, value: ir.Value, axis: int) -> ir.Value:
        return self.add(ops.node_along(name, value, [axis], self.version))

    def map(self, weight: ir.Value, value: ir.Value, bias: ir.Value) -> ir.Value:
        return self.op("Add", self.op("MatMul", weight, value), bias)

    def split(self, value: ir.Value, *sizes: int) -> Sequence[ir.Value]:
        self.nodes.append(node := ops.split_node(value, 1, sizes, self.version))
        return node.outputs

    def activated(self, value: ir.Value, activation: tuple[str, tuple[float, ...]]) -> ir.Value:
        op, parameters = activation
        return self.add(ir.node(op, [value], dict(zip(_PARAMETERS, parameters, strict=False))))


def spelled_out(
    cell: Cell, given: Given, version: int, fresh_name: Callable[[str], str]
) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes that compute a recurrence, and its results: of all steps [steps, batch, size], and the last states.

    Args:
        cell: The cell.
        given: What it is given.
        version: The opset.
        fresh_name: Gives names that the model has not.
    """
    around, size = _Nodes(version), cell.size
    rows = around.turned(given.x, 0, 2, 1)
    states = [around.turned(value, 0, 2, 1) for value in given.begins]
    bias = around.along("Unsqueeze", given.bias, 2)
    of_rows, of_state = around.split(bias, *[len(cell.gates) * size] * 2)
    kind, number = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.INT64)
    entered = ir.Shape(
        [1, size, given.batch if isinstance(given.batch, int) else None]
    )  # what no steps at all give goes by it
    entries = [ir.Value(name=fresh_name("state"), type=kind, shape=entered) for _ in states]
    step_number = ir.Value(name=fresh_name("step"), type=number, shape=ir.Shape([]))
    goes_on = ir.Value(name=fresh_name("goes_on"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    body, backward = _Nodes(version), cell.rows[0].backward
    place = body.op("Sub", constant(-1), step_number) if backward else step_number
    step = _Step(cell, body, given.of_state, of_state, entries)
    after = _STEPS[cell.op](step, body.map(given.of_rows, body.op("Gather", rows, place), of_rows))
    returned = [body.op("Identity", goes_on), *after, body.op("Identity", after[0])]
    graph = new_graph([step_number, goes_on, *entries], returned, body.nodes, "step")
    steps = around.op("Gather", around.op("Shape", rows), constant(0))
    around.nodes.append(loop := ir.node("Loop", [steps, None, *states], {"body": graph}, num_outputs=len(states) + 1))
    last = [around.turned(around.along("Squeeze", value, 0), 1, 0) for value in loop.outputs[:-1]]
    every = around.turned(around.along("Squeeze", loop.outputs[-1], 1), 0, 2, 1)
    return around.nodes, [around.add(reversed_rows(every, version)) if backward else every, *last]


def reversed_rows(rows: ir.Value, version: int) -> ir.Node:
    """Rows, the last one first.

    Args:
        rows: The rows, along the first axis.
        version: The opset, from 10 on.
    """
    return ops.slice_node(rows, [(0, -1, -(1 << 63), -1)], version)


class _Step(Struct, frozen=True):
    """What the nodes of a step are made from: its body, weights and bias of the state, the states."""

    cell: Cell
    body: _Nodes
    weight: ir.Value
    bias: ir.Value
    states: Sequence[ir.Value]

    def map(self, state: ir.Value) -> ir.Value:
        return self.body.map(self.weight, state, self.bias)


def _lstm(step: _Step, from_row: ir.Value) -> list[ir.Value]:
    body, (hidden, memory) = step.body, step.states
    parts = body.split(body.op("Add", from_row, step.map(hidden)), *[step.cell.size] * 4)
    gate, content, shown = step.cell.activations
    admit, output, forget = (body.activated(part, gate) for part in parts[:3])
    added = body.op("Mul", admit, body.activated(parts[3], content))
    kept = body.op("Add", body.op("Mul", forget, memory), added)
    return [body.op("Mul", output, body.activated(kept, shown)), kept]


def _gru(step: _Step, from_row: ir.Value) -> list[ir.Value]:
    body, (hidden,), size = step.body, step.states, step.cell.size
    gate, activation = step.cell.activations
    first, content = body.split(from_row, 2 * size, size)
    own_first, own = body.split(step.map(hidden), 2 * size, size)
    update, reset = body.split(body.activated(body.op("Add", first, own_first), gate), size, size)
    if step.cell.linear_before_reset:
        own = body.op("Mul", reset, own)
    else:
        own = body.split(step.map(body.op("Mul", reset, hidden)), 2 * size, size)[1]
    new = body.activated(body.op("Add", content, own), activation)
    rest = body.op("Sub", constant(1.0), update)
    return [body.op("Add", body.op("Mul", rest, new), body.op("Mul", update, hidden))]


def _rnn(step: _Step, from_row: ir.Value) -> list[ir.Value]:
    return [step.body.activated(step.body.op("Add", from_row, step.map(step.states[0])), step.cell.activations[0])]


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}

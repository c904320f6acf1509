"""Loop and Scan in one form: which inputs and outputs of the node belong to which of the body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import onnx_ir as ir
from msgspec import Struct

from ortopt import semantics
from ortopt.analysis import targets
from ortopt.graph import scope, symbolic
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    before,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    need_known,
    opset,
    same_dim,
    scalar,
    shape_of,
    static_dims,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.semantics.op_traits import CASTS, RESHAPING
from ortopt.semantics.opset_changes import SCAN_HAS_NO_BATCH_FROM
from ortopt.transformer import Context

LOOPS = ("Loop", "Scan")

MAX_STEPS: Final = 8
"""Nodes between a number and what it is computed from."""

_ZERO: Dim = 0

_HOLD_SIZES: Final = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Types to which a size or the number of an iteration is cast and stays what it is."""

ENDLESS: Final = 1 << 31
"""A trip count from here on is none: what an iteration takes a row of is shorter."""


class Repeated(Struct, frozen=True):
    """A Loop, or a Scan since opset 9, with as many inputs and outputs as its body needs.

    A state is what one iteration hands to the next; a scanned input gives each iteration a slice, and a scanned output
    collects one of each.

    Attributes:
        node: The node.
        body: The graph that it repeats.
        states: How many states there are.
        before: How many inputs, of the node as of the body, stand before the states: 2 of a Loop, none of a Scan.
    """

    node: ir.Node
    body: ir.Graph
    states: int
    before: int

    @property
    def before_results(self) -> int:
        """How many outputs of the body stand before the states: a Loop's condition."""
        return 1 if self.before else 0

    def initial(self, state: int) -> ir.Value | None:
        """The value of a state before the first iteration."""
        return self.node.inputs[self.before + state]

    def entry(self, state: int) -> ir.Value:
        """The value of a state in the body, when an iteration begins."""
        return self.body.inputs[self.before + state]

    def returned(self, output: int) -> ir.Value:
        """The result of the body for an output of the node: the states first, then the scanned outputs."""
        return self.body.outputs[self.before_results + output]

    def required_for(self, outputs: Iterable[int]) -> list[ir.Value]:
        """What each iteration must compute: the condition, some results, and what nodes that may have effects read.

        Args:
            outputs: The outputs of the node whose results are needed.
        """
        functions = scope.of_node(self.node).model.functions
        effects = (node for node in self.body if not semantics.is_removable(node, functions))
        read = (value for node in effects for value in scope.read_by(node))
        return [*self.body.outputs[: self.before_results], *map(self.returned, outputs), *read]

    def read_for(self, value: ir.Value) -> list[ir.Value]:
        """What the node of the body that computes a value reads; nothing where the value is from elsewhere."""
        node = value.producer()
        return scope.read_by(node) if node is not None and node.graph is self.body else []

    @property
    def scanned_inputs(self) -> tuple[tuple[ir.Value | None, ir.Value], ...]:
        """The inputs of the node that are scanned, each with the slice that the body gets."""
        first = self.before + self.states
        return tuple(zip(self.node.inputs[first:], self.body.inputs[first:], strict=True))


def need_open(loop: ir.Node, context: Context) -> None:
    """Refuse a loop whose body may not read what is computed outside, on the runtimes that the result is for.

    Args:
        loop: The loop.
        context: The run's.

    Raises:
        Refusal: If it is one.
    """
    closed = targets.closed(context.options.target)
    need(loop.op_type not in closed, "the target lets its body read nothing that is computed outside", loop)


def repeated(node: ir.Node) -> Repeated:
    """Read a Loop or a Scan.

    Args:
        node: A Loop or a Scan.

    Raises:
        Refusal: If its parts do not fit, or it is a Scan of opset 8, which has batches.
    """
    body: ir.Graph | None = attribute(node, "body", None)
    body = need_known(body, "it has no body", node)
    if is_op(node, "Loop"):
        states, before = max(len(node.inputs) - 2, 0), 2
        need(len(body.inputs) == states + 2, "the body has another number of inputs", node)
    else:
        need(opset(node) >= SCAN_HAS_NO_BATCH_FROM, "before opset 9 a Scan has batches", node)
        states, before = len(node.inputs) - attribute(node, "num_scan_inputs", 0), 0
        need(0 <= states < len(node.inputs), "it scans nothing", node)
        need(len(body.inputs) == len(node.inputs), "the body has another number of inputs", node)
    loop = Repeated(node, body, states, before)
    need(len(body.outputs) == len(node.outputs) + loop.before_results, "the body has another number of results", node)
    need(len(node.outputs) >= states, "the body has too few results", node)
    need(all(value is not None for value in node.inputs[before:]), "an input is left out", node)
    return loop


def copied(value: ir.Value) -> ir.Value:
    """The value that a value is a copy of, through any number of Identity nodes."""
    return before(value, "Identity")


def loops_below(graph: ir.Graph, context: Context, *kinds: str) -> list[ir.Node]:
    """The loops of a graph and of all graphs below it, innermost first; none where the graph is itself a part of one.

    Args:
        graph: The outermost graph: its turn is that of all graphs below it.
        context: The run.
        kinds: Op types.
    """
    if scope.of(graph).parent is not None:
        return []
    token = context.cancellation
    return [node for at in scope.below(graph, token) for node in token.checked(at) if is_op(node, *kinds)][::-1]


def move_out(node: ir.Node, loop: ir.Node, context: Context) -> None:
    """Move a node of a body in front of its loop, under names that no other body has.

    Args:
        node: A node all of whose operands are outside.
        loop: The loop.
        context: The way to edit.
    """
    context.edit.move_before(node, loop)
    for value in node.outputs:
        if value.name and use_count(value):
            context.edit.rename(value, context.edit.fresh_name(value.name))


def bring_out(value: ir.Value, loop: ir.Node, body: ir.Graph, context: Context) -> ir.Value:
    """Move a constant of a body in front of its loop.

    Args:
        value: An initializer, what a Constant gives, or a value from outside, which stays.
        loop: The loop.
        body: Its body.
        context: The way to edit.

    Returns:
        What all uses now read.
    """
    producer = value.producer()
    if producer is not None and producer.graph is body:
        move_out(producer, loop, context)
    elif value.graph is body and value.is_initializer():
        return context.edit.adopt_initializer(value, loop)
    return value


def outside(value: ir.Value, loop: Repeated) -> ir.Value:
    """What an operand of a body is outside the loop.

    Args:
        value: The operand.
        loop: The loop.

    Raises:
        Refusal: If the loop makes it.
    """
    if value.graph is not loop.body or is_constant(value):
        return value
    for state in range(loop.states):
        if value is loop.entry(state) and is_invariant(state, loop):
            return need_known(loop.initial(state), "it has no initial state", value)
    raise Refusal("another operand is made in the loop", value)


def is_invariant(state: int, loop: Repeated) -> bool:
    """Whether no iteration changes a state."""
    initial = loop.initial(state)
    return initial is not None and copied(loop.returned(state)) in (loop.entry(state), initial)


class Count(NamedTuple):
    """A number that grows by the same in each iteration.

    Attributes:
        start: What it is in the first one.
        step: By what it grows.
    """

    start: Dim
    step: int


def count(value: ir.Value, loop: Repeated) -> Count | None:
    """How a value of a body counts the iterations; None where it is not known to.

    It may be counted in a float, which is exact for as many iterations as there ever are (2^24 in single precision).

    Args:
        value: A number, of one element.
        loop: The loop.
    """
    sign, offset = 1, _ZERO
    for _ in range(MAX_STEPS):
        value = copied(value)
        begins = _begins(value, loop)
        if begins is not None:
            return Count(symbolic.add(offset, symbolic.mul(sign, begins.start)), sign * begins.step)
        node = value.producer()
        if is_op(node, *CASTS, *RESHAPING) and value.dtype in _HOLD_SIZES:
            value = inputs(node, 1)[0]
        elif is_op(node, "Add", "Sub"):
            a, b = inputs(node, 2)
            added, taken = _number_in(a, loop), _number_in(b, loop)
            subtracts = node.op_type == "Sub"
            if taken is not None:
                value, offset = a, _plus(offset, -sign if subtracts else sign, taken)
            elif added is not None:
                value, offset = b, _plus(offset, sign, added)
                sign = -sign if subtracts else sign
            else:
                return None
        else:
            return None
    return None


def _plus(offset: Dim, sign: int, number: Dim) -> Dim:
    return symbolic.add(offset, symbolic.mul(sign, number))


def _begins(value: ir.Value, loop: Repeated) -> Count | None:
    """How a loop's own counter, or a state that grows by a constant, counts."""
    if loop.before and value is loop.body.inputs[0]:
        return Count(0, 1)
    for state in range(loop.states):
        initial = loop.initial(state)
        if value is not loop.entry(state) or initial is None:
            continue
        start, after = number(initial), copied(loop.returned(state)).producer()
        if start is None or not is_op(after, "Add", "Sub"):
            return None
        a, b = inputs(after, 2)
        by = _number_in(b if a is value else a, loop)
        if isinstance(by, int) and (a is value or (b is value and after.op_type == "Add")):
            return Count(start, -by if after.op_type == "Sub" else by)
    return None


def _number_in(value: ir.Value, loop: Repeated) -> Dim | None:
    """A number that a body reads, if it is the same in each iteration."""
    try:
        return number(outside(value, loop))
    except Refusal:
        return None


def number(value: ir.Value, place: int = 0) -> Dim | None:
    """The size that an element is, where it fits the types that it passes through; None where it is none.

    Args:
        value: A value of rank 0 or 1, from outside of a loop or constant.
        place: Which of its elements.
    """
    for _ in range(MAX_STEPS):
        known = contents(value)
        if known is not None and place < len(known) and symbolic.is_known(known[place]):
            return known[place]
        node = value.producer()
        if node is None or is_constant(value):
            return _whole(value)
        if is_op(node, "Shape") and not node.attributes:
            return dims(inputs(node, 1)[0])[place]
        if is_op(node, "Gather", "Slice"):
            place += int(scalar(inputs(node, 2)[1]))
        elif is_op(node, "Concat"):
            value, place = _operand_with(node, place)
            continue
        elif not is_op(node, *CASTS, *RESHAPING, "Identity") or value.dtype not in _HOLD_SIZES:
            return None
        value = inputs(node, len(node.inputs))[0]
    return None


def _operand_with(node: ir.Node, place: int) -> tuple[ir.Value, int]:
    """The operand of a Concat of vectors that has an element, and which of its elements that is."""
    for part in inputs(node, len(node.inputs)):
        (size,) = static_dims(part, 1)
        if place < size:
            return part, place
        place -= size
    raise Refusal("it has fewer elements", node)


def _whole(value: ir.Value) -> int | None:
    """A constant that is a whole number, of whatever type."""
    if not is_constant(value) or not same_dim(symbolic.product(dims(value)), 1):
        return None
    exact = float(scalar(value))
    return int(exact) if exact.is_integer() else None


def dims_made(value: ir.Value) -> tuple[Dim, ...]:
    """The dimensions of a value, those that a shape gives it in small integers too.

    Args:
        value: A value from outside of a loop.
    """
    shape, node = dims(value), value.producer()
    if is_op(node, "Expand") and same_dim(symbolic.product(dims(inputs(node, 2)[0])), 1):
        wanted = inputs(node, 2)[1]
    elif is_op(node, "ConstantOfShape"):
        (wanted,) = inputs(node, 1)
    else:
        return shape
    made = [number(wanted, place) for place in range(len(shape))]
    return tuple(
        own if found is None or isinstance(own, int) else found for own, found in zip(shape, made, strict=True)
    )


def carried_sizes(loop: Repeated) -> dict[str, Dim]:
    """What symbols for dimensions of states are in every iteration: what they are before the first.

    Args:
        loop: The loop.
    """
    begins = {}
    for state in range(loop.states):
        initial, shapes = loop.initial(state), (shape_of(loop.entry(state)), shape_of(loop.returned(state)))
        if initial is not None and shape_of(initial) is not None and all(each is not None for each in shapes):
            begins[state] = dims_made(initial)
    while True:
        sizes = {
            own.value: known
            for state, begin in begins.items()
            for own, known in zip(dims(loop.entry(state)), begin, strict=False)
            if not isinstance(own, int) and own.value is not None and symbolic.is_invented(own)
        }
        changed = [
            state
            for state, begin in begins.items()
            if not symbolic.same_shape([resolved(dim, sizes) for dim in dims(loop.returned(state))], begin)
        ]
        if not changed:
            return sizes
        for state in changed:
            del begins[state]


def resolved(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """A dimension in a body by what symbols stand for; of what broadcasts, the one that all of it is.

    Args:
        dim: The dimension.
        sizes: What symbols stand for.
    """
    parts = [
        sizes.get(part.value or "", part) if not isinstance(part, int) else part
        for part in symbolic.broadcast_from(dim)
    ]
    return parts[0] if parts and all(same_dim(part, parts[0]) for part in parts) else dim


def iterations(loop: Repeated) -> Dim | None:
    """How many iterations a Loop makes wherever that is at least one; None where it is not known.

    Args:
        loop: The loop.
    """
    limits, most = [], loop.node.inputs[0]
    if most is not None:
        limits.append(number(most))
    pending = [loop.body.outputs[0]]
    while pending:
        condition = copied(pending.pop())
        node = condition.producer()
        if is_op(node, "And"):
            pending += inputs(node, 2)
        elif is_op(node, "Less", "Greater"):
            counted, limit = inputs(node, 2) if node.op_type == "Less" else inputs(node, 2)[::-1]
            limits.append(_last(count(counted, loop), _number_in(limit, loop)))
        elif condition is not loop.body.inputs[1] and not _is_true(condition):
            return None
    begins = loop.node.inputs[1]
    for least in limits:
        if least is None or not all(limit is not None and _is_at_least(limit, least) for limit in limits):
            continue
        return least if begins is None or _is_true_from(begins, least) else None
    return None


def _is_at_least(limit: Dim, least: Dim) -> bool:
    return (isinstance(limit, int) and limit >= ENDLESS) or symbolic.at_least(symbolic.sub(limit, least), 0)


def _last(counted: Count | None, limit: Dim | None) -> Dim | None:
    """How many iterations are made where each asks whether a number that grows by one is still less than a limit."""
    if counted is None or limit is None or counted.step != 1:
        return None
    return symbolic.add(symbolic.sub(limit, counted.start), 1)


def _is_true(condition: ir.Value) -> bool:
    return is_constant(condition) and bool(scalar(condition))


def _is_true_from(condition: ir.Value, size: Dim) -> bool:
    """Whether a condition holds wherever a size is at least 1."""
    pending = [condition]
    while pending:
        condition = copied(pending.pop())
        node = condition.producer()
        if is_op(node, "And"):
            pending += inputs(node, 2)
        elif is_op(node, "Less", "Greater"):
            low, high = map(number, inputs(node, 2) if node.op_type == "Less" else inputs(node, 2)[::-1])
            if low is None or high is None or not same_dim(symbolic.sub(high, low), size):
                return False
        elif not _is_true(condition):
            return False
    return True


def scanned_along(loop: Repeated, kind: str, position: int) -> tuple[int, bool]:
    """The axis along which an input or output is scanned, and whether the last slice comes first.

    Args:
        loop: A Scan; a Loop collects along the first axis.
        kind: ``input`` or ``output``.
        position: The number of the scanned input or output.
    """
    axes: tuple[int, ...] = attribute(loop.node, f"scan_{kind}_axes", ())
    directions: tuple[int, ...] = attribute(loop.node, f"scan_{kind}_directions", ())
    axis = axes[position] if position < len(axes) else 0
    return axis, position < len(directions) and directions[position] != 0

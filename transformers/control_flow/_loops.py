"""Loop and Scan in one form: which inputs and outputs of the node belong to which of the body."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis import targets
from ortopt.graph import scope
from ortopt.graph.match import attribute, is_op, need, need_known, opset
from ortopt.onnx_ir_internals import use_count
from ortopt.semantics.opset_changes import SCAN_HAS_NO_BATCH_FROM
from ortopt.transformer import Context

LOOPS = ("Loop", "Scan")


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
    while is_op(node := value.producer(), "Identity"):
        if not node.inputs or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def loops_below(graph: ir.Graph, context: Context, *kinds: str) -> list[ir.Node]:
    """The loops of a graph and of all graphs below it, innermost first; none where the graph is itself a part of one.

    Args:
        graph: The outermost graph: its turn is that of all graphs below it.
        context: What tells whether there are any.
        kinds: Op types.
    """
    if scope.of(graph).parent is not None or not context.edit.index.has_any_anywhere(kinds):
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

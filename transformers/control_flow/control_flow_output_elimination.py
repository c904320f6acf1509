"""Unused results of an If, a Loop or a Scan need not be computed, nor carried from iteration to iteration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import onnx_ir as ir

from ortopt import semantics
from ortopt.graph.edit import Conflict
from ortopt.graph.match import Refusal, attribute, is_op, need
from ortopt.onnx_ir_internals import is_needed, use_count
from ortopt.transformer import Context, GraphTransformer
from ortopt.transformers.control_flow._loops import Repeated, repeated

OPS = tuple(sorted(semantics.CONTROL_FLOW - {"SequenceMap"}))  # of which all results are kept


class ControlFlowOutputElimination(GraphTransformer):
    """Results of ``If``, ``Loop`` and ``Scan`` that nobody uses, states that feed only themselves → nothing."""

    after = ("dead_node_elimination",)
    needs = OPS
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Drop unused results of the control flow of a graph, users before the nodes that they use."""
        changed = False
        for node in reversed([node for node in context.cancellation.checked(graph) if is_op(node, *OPS)]):
            if node.graph is None or not any(map(is_needed, node.outputs)):
                continue  # it is dead as a whole
            try:
                changed |= _trim_if(node, context) if node.op_type == "If" else _trim_loop(node, context)
            except Refusal as refusal:
                context.refuse(node, refusal)
        return changed


def _trim_if(node: ir.Node, context: Context) -> bool:
    kept = [position for position, value in enumerate(node.outputs) if is_needed(value)]
    if len(kept) == len(node.outputs):
        return False
    branches = [attribute(node, name, None) for name in ("then_branch", "else_branch")]
    for branch in branches:
        need(branch is not None and len(branch.outputs) == len(node.outputs), "a branch has too few results", node)

    def change() -> list[ir.Node]:
        for branch in branches:
            assert isinstance(branch, ir.Graph)
            context.edit.set_graph_outputs(branch, [branch.outputs[position] for position in kept])
        context.edit.set_outputs(node, [node.outputs[position] for position in kept])
        return [node]

    return context.attempt((node,), change, f"{len(node.outputs) - len(kept)} results are not used")


def _trim_loop(node: ir.Node, context: Context) -> bool:
    """Drop the unused results of a Loop or Scan, the states that nothing else needs, and slices that nobody reads."""
    loop = repeated(node)
    kept, read = _needed(loop)
    scanned = _kept_inputs(loop, read)
    if len(kept) == len(node.outputs) and len(scanned) == len(loop.scanned_inputs):
        return False
    why = _why(len(node.outputs) - len(kept), len(loop.scanned_inputs) - len(scanned))
    return context.attempt((node,), partial(_keep, loop, kept, scanned, context), why)


def _keep(loop: Repeated, kept: Sequence[int], scanned: Sequence[int], context: Context) -> list[ir.Node]:
    """Reduce a loop to some of its outputs, with their states, and some of its scanned inputs."""
    edit, node = context.edit, loop.node
    states = [position for position in kept if position < loop.states]
    dropped = [value for value in node.inputs if value is not None]
    front = range(loop.before_results)
    edit.set_graph_outputs(loop.body, [loop.body.outputs[i] for i in front] + [loop.returned(i) for i in kept])
    inputs = [*range(loop.before), *(loop.before + i for i in states), *scanned]
    for position, value in enumerate(loop.body.inputs):
        if position not in inputs and use_count(value):
            raise Conflict("the body still needs what it would lose")
    edit.set_graph_inputs(loop.body, [loop.body.inputs[i] for i in inputs])
    if not loop.before:
        _keep_attributes(
            loop, [i - loop.states for i in scanned], [i - loop.states for i in kept if i >= loop.states], context
        )
    edit.set_inputs(node, [node.inputs[i] for i in inputs if i < len(node.inputs)])
    edit.set_outputs(node, [node.outputs[position] for position in kept])
    edit.sweep([producer for value in dropped if (producer := value.producer()) is not None])
    return [node]


def _why(results: int, slices: int) -> str:
    parts = [f"{results} results are not used"] if results else []
    parts += [f"{slices} inputs are not read"] if slices else []
    return ", ".join(parts)


def _needed(loop: Repeated) -> tuple[list[int], set[ir.Value]]:
    """The needed outputs: those that are used, and the states on which they, the condition or an effect depend.

    Returns:
        The positions of these outputs, and the values that they are computed from.
    """
    live = {position for position, value in enumerate(loop.node.outputs) if is_needed(value)}
    state_of = {loop.entry(state): state for state in range(loop.states)}
    pending = loop.required_for(live)
    seen: set[ir.Value] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        state = state_of.get(value)
        if state is not None and state not in live:
            live.add(state)
            pending.append(loop.returned(state))
        pending += loop.read_for(value)
    return sorted(live), seen


def _kept_inputs(loop: Repeated, read: set[ir.Value]) -> list[int]:
    """The positions of the scanned inputs that are read; at least one, as it decides the number of iterations."""
    first = loop.before + loop.states
    positions = range(first, len(loop.body.inputs))
    return [i for i in positions if loop.body.inputs[i] in read] or list(positions[:1])


def _keep_attributes(loop: Repeated, inputs: Sequence[int], outputs: Sequence[int], context: Context) -> None:
    """Reduce a Scan's attributes to the inputs and outputs that stay."""
    edit, node = context.edit, loop.node
    for kind, kept in (("input", inputs), ("output", outputs)):
        for name in (f"scan_{kind}_axes", f"scan_{kind}_directions"):
            listed: tuple[int, ...] | None = attribute(node, name, None)
            if listed is None:
                continue
            if kept:
                edit.set_attribute(node, ir.AttrInt64s(name, [listed[i] for i in kept]))
            else:
                edit.remove_attribute(node, name)
    edit.set_attribute(node, ir.AttrInt64("num_scan_inputs", len(inputs)))

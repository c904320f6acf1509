"""Which input is the past of which output: proven from the graph, not from names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx_ir as ir

from ortopt.errors import UsageError
from ortopt.graph.match import optional
from ortopt.graph.refusal import Refusal, need
from ortopt.semantics.domains import MICROSOFT
from ortopt.terminal_text import quoted

ATTENTION: Final = {("", "Attention"): {1: 4, 2: 5}, (MICROSOFT, "MultiHeadAttention"): {1: 6, 2: 7}}
"""Ops that append to a past themselves: from the output that is the present to the input that is the past."""


@dataclass(frozen=True, slots=True)
class CachePair:
    """An output that is an input with something behind it.

    Attributes:
        past: The input.
        present: The output.
        node: What appends: a Concat, or an attention op.
        axis: Along which axis.
    """

    past: ir.Value
    present: ir.Value
    node: ir.Node
    axis: int


def find_pairs(model: ir.Model, wanted: Mapping[str, str] | None) -> tuple[CachePair, ...]:
    """The pairs of a model.

    Args:
        model: The model, with shapes.
        wanted: The presents by their pasts' names; None for all that there are.

    Raises:
        UsageError: One that is wanted is none, or there is none at all; the message has the reasons.
    """
    inputs = {value.name or "": value for value in model.graph.inputs}
    outputs = {value.name or "": value for value in model.graph.outputs}
    if wanted is not None:
        pairs = [_wanted(inputs, outputs, past, present) for past, present in wanted.items()]
        return _once_each(pairs)
    pairs, reasons = [], []
    for present in outputs.values():
        try:
            pairs.append(_pair(present))
        except Refusal as refusal:
            reasons.append(f"{quoted(present.name)}: {refusal}")
    if not pairs:
        raise UsageError(f"no output is an input with something behind it ({'; '.join(reasons)})")
    return _once_each(pairs)


def _once_each(pairs: Sequence[CachePair]) -> tuple[CachePair, ...]:
    """Pairs, unless two of them have the same past."""
    for number, pair in enumerate(pairs):
        if any(pair.past is other.past for other in pairs[:number]):
            raise UsageError(f"{quoted(pair.past.name)} is the past of two outputs")
    return tuple(pairs)


def _wanted(inputs: Mapping[str, ir.Value], outputs: Mapping[str, ir.Value], past: str, present: str) -> CachePair:
    for name, values, kind in ((past, inputs, "input"), (present, outputs, "output")):
        if name not in values:
            raise UsageError(f"the model has no {kind} {quoted(name)}")
    try:
        pair = _pair(outputs[present])
    except Refusal as refusal:
        raise UsageError(f"{quoted(present)} is not {quoted(past)} with something behind it: {refusal}") from refusal
    if pair.past is not inputs[past]:
        raise UsageError(
            f"{quoted(present)} is not {quoted(past)} with something behind it, but {quoted(pair.past.name)}"
        )
    return pair


def _pair(present: ir.Value) -> CachePair:
    """The pair of an output, or a refusal."""
    made = source(present)
    node = made.producer()
    if node is None:
        raise Refusal("no node computes it")
    key = (node.domain, node.op_type)
    if key == ("", "Concat"):
        past, axis = _concatenated(node)
    elif key in ATTENTION and made.index() in ATTENTION[key]:
        past, axis = _operand(node, ATTENTION[key][made.index() or 0]), 2
    else:
        raise Refusal(f"it is what {node.op_type} computes, not a Concat of past and new")
    _check(past, present, made)
    return CachePair(past, present, node, axis)


def _concatenated(node: ir.Node) -> tuple[ir.Value, int]:
    past = source(_operand(node, 0))
    need(len(node.inputs) == 2, f"the Concat has {len(node.inputs)} operands, not two")
    if not past.is_graph_input():
        second = source(_operand(node, 1))
        raise Refusal("the past comes last" if second.is_graph_input() else "no operand of the Concat is an input")
    if past.shape is None:
        raise Refusal("the rank is unknown")
    return past, node.attributes.get_int("axis", 0) % len(past.shape)


def _operand(node: ir.Node, position: int) -> ir.Value:
    value = optional(node, position)
    if value is None:
        raise Refusal(f"{node.op_type} has no past")
    return value


def source(value: ir.Value) -> ir.Value:
    """What a value is, behind nodes that change nothing."""
    while (node := value.producer()) is not None and _changes_nothing(node) and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _changes_nothing(node: ir.Node) -> bool:
    alone = node.op_type == "Concat" and len(node.inputs) == 1
    return node.domain == "" and (node.op_type == "Identity" or alone)


def _check(past: ir.Value, present: ir.Value, made: ir.Value) -> None:
    """Refuse what could not be in one buffer."""
    need(past.is_graph_input() and not past.is_initializer(), "the past is no input, or one with a default")
    need(past.dtype is not None and past.dtype == present.dtype, f"past is {past.dtype}, present is {present.dtype}")
    need(past.shape is not None and len(past.shape) >= 2, "the past has no known rank of two or more")
    need(not past.is_graph_output(), "the past is an output, too")
    for value in {past, made, present}:
        is_captured = any(node.graph is not present.graph for node, _ in value.uses())
        need(not is_captured, f"{quoted(value.name)} is used in a nested graph")

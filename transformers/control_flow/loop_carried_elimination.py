"""A state that no iteration changes need not be a state: the body can read it from outside."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import onnx_ir as ir

from ortopt.graph.edit import Conflict
from ortopt.graph.match import Refusal, is_constant, is_op, need, shape_of, users
from ortopt.onnx_ir_internals import is_needed
from ortopt.options import Target
from ortopt.transformer import Context, GraphTransformer
from ortopt.transformers.control_flow._loops import LOOPS, Repeated, copied, need_open, repeated

_MAX_UNPACKED: Final = 1 << 16
"""Elements of weights up to which products of few rows are faster where they are not packed."""


class LoopCarriedElimination(GraphTransformer):
    """State of a ``Loop`` or ``Scan`` that no iteration changes → the value that it begins with, captured.

    For ONNX Runtime small weights of products stay states: it packs constants, which pays with more rows only.
    """

    needs = LOOPS
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Let bodies read such states from outside; control_flow_output_elimination then drops them."""
        changed = False
        loops = [node for node in context.cancellation.checked(graph) if is_op(node, *LOOPS)]
        for node, loop in context.answered(loops, repeated):
            for state in range(loop.states):
                if _is_constant(loop, state):
                    try:
                        _check_may_go(loop, state, context)
                    except Refusal as refusal:
                        context.refuse(node, refusal)
                        continue
                    capture = partial(_capture, loop, state, context)
                    changed |= context.attempt((node,), capture, f"{loop.entry(state).name} never changes")
        return changed


def _check_may_go(loop: Repeated, state: int, context: Context) -> None:
    """Refuse a state that what runs the result wants, though it never changes."""
    is_weight = context.options.target is Target.ORT and _is_small_weight(loop, state)
    need(not is_weight, "a small weight is faster as a state", loop.entry(state))
    initial = loop.initial(state)
    if initial is not None and not is_constant(initial) and is_needed(loop.entry(state)):
        need_open(loop.node, context)


def _is_constant(loop: Repeated, state: int) -> bool:
    """Whether a state that is read always keeps its initial value."""
    entry, initial, result = loop.entry(state), loop.initial(state), loop.node.outputs[state]
    if initial is None or copied(loop.returned(state)) not in (entry, initial):
        return False
    return (is_needed(entry) or is_needed(result)) and _may_be_of_one_shape(entry, initial)


def _is_small_weight(loop: Repeated, state: int) -> bool:
    """Whether a product reads a state as its weights, which ONNX Runtime packs where they are constants.

    Loops call products with few rows, for which small weights are faster as they are: 0.78 to 0.97 of the speed of
    TensorFlow's recurrences with a batch of 1 where 64×256 weights are constants, 1.05 to 1.5 from 192×768 up.
    """
    entry, initial = loop.entry(state), loop.initial(state)
    if initial is None or initial.dtype != ir.DataType.FLOAT or not is_constant(initial):
        return False
    dims = shape_of(initial)
    if dims is None or len(dims) != 2 or math.prod(dim for dim in dims if isinstance(dim, int)) > _MAX_UNPACKED:
        return False
    return any(is_op(node, "MatMul", "Gemm") and node.inputs[1] is entry for node in users(entry))


def _may_be_of_one_shape(entry: ir.Value, initial: ir.Value) -> bool:
    """Whether a body declares no other shape than the outer value has: what is computed from it is declared alike.

    ONNX Runtime takes such a body, and refuses it once it reads the outer value.
    """
    declared, known = entry.shape, initial.shape
    if declared is None or known is None:
        return True
    return len(declared) == len(known) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in zip(declared, known, strict=True)
    )


def _capture(loop: Repeated, state: int, context: Context) -> list[ir.Node]:
    edit, node = context.edit, loop.node
    entry, initial, result = loop.entry(state), loop.initial(state), loop.node.outputs[state]
    assert initial is not None
    captured = is_needed(entry)
    if entry.is_graph_output():  # a body returns what it computes: the outer value needs a name inside
        copy = ir.node("Identity", [initial])
        edit.append(loop.body, copy)
        for position, value in enumerate(loop.body.outputs):
            if value is entry:
                edit.set_output(loop.body, position, copy.outputs[0])
    if captured:
        edit.replace_uses(entry, initial)
    if is_needed(result):
        new = ir.node("Identity", [initial]).outputs[0] if result.is_graph_output() else initial
        try:
            context.replace({result: new}, before=node, origin=(node,))
        except Conflict as conflict:
            if not captured:
                raise
            context.refuse(node, conflict)  # the body reads it from outside all the same
    return [node]

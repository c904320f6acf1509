"""A Loop of one iteration, or of none, needs no Loop; with more iterations, unrolling would multiply the nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, need, opset, shape_of
from ortopt.onnx_ir_internals import is_needed
from ortopt.options import TransformerLevel
from ortopt.semantics import constant_tensor
from ortopt.transformer import Context
from ortopt.transformers.control_flow._body_inlining import BodyInlining, Inlining
from ortopt.transformers.control_flow._loops import Repeated, copied, repeated, with_axis


class LoopUnrolling(BodyInlining):
    """``Loop`` of no iteration → the initial states; of one → the nodes of its body."""

    levels = (TransformerLevel.LEVEL1,)
    op = "Loop"

    def decide(self, node: ir.Node, context: Context) -> Inlining:
        """One iteration, or none."""
        loop = repeated(node)
        if _iterations(loop):
            return Inlining(lambda: _inline(loop, context), "it makes one iteration")
        empty = _empty_results(loop)
        return Inlining(lambda: _skip(loop, empty, context), "it makes no iteration")


def _iterations(loop: Repeated) -> int:
    """How many iterations a Loop makes: 0 or 1.

    Raises:
        Refusal: If it may be more, or is not known.
    """
    most = _number(loop.node, 0)
    begins = _number(loop.node, 1)
    if begins == 0 or (isinstance(most, int) and most <= 0):
        return 0
    need(begins == 1, "whether it begins is not known", loop.node)
    ends = copied(loop.body.outputs[0])
    last = constant_tensor(ends)
    ends_at_once = last is not None and last.size == 1 and not np.asarray(last.numpy()).reshape(-1)[0]
    need(most == 1 or (ends_at_once and most is not None), "it may make more than one iteration", loop.node)
    return 1


def _number(node: ir.Node, position: int) -> int | None:
    """The trip count of a Loop, or its first condition, if known; left out, they are endless and true."""
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None:
        return np.iinfo(np.int64).max if position == 0 else 1
    known = contents(value)
    if known is None or len(known) != 1 or not isinstance(known[0], int):
        return None
    return known[0]


def _empty_results(loop: Repeated) -> list[ir.Value | None]:
    """The scanned outputs of no iteration: tensors with a first dimension of 0."""
    empty: list[ir.Value | None] = []
    for output in range(loop.states, len(loop.node.outputs)):
        result = loop.node.outputs[output]
        if not is_needed(result):
            empty.append(None)
            continue
        slice_ = loop.returned(output)
        dims = shape_of(slice_)
        known = [dim for dim in dims or () if isinstance(dim, int)]
        need(dims is not None and len(known) == len(dims), "the shape of an empty result is not known", slice_)
        dtype = slice_.dtype
        if dtype is None or dtype == ir.DataType.STRING:
            raise Refusal("the type of an empty result is not that of numbers", slice_)
        empty.append(constant(ir.Tensor(np.zeros((0, *known), dtype.numpy()), dtype=dtype)))
    return empty


def _skip(loop: Repeated, empty: list[ir.Value | None], context: Context) -> list[ir.Node]:
    """Replace the results by the initial states and empty tensors."""
    results = [*(loop.initial(state) for state in range(loop.states)), *empty]
    pairs = zip(loop.node.outputs, results, strict=True)
    replacements = {old: new for old, new in pairs if new is not None and is_needed(old)}
    context.edit.replace_and_remove(loop.node, replacements, ())
    return []


def _inline(loop: Repeated, context: Context) -> list[ir.Node]:
    """Replace the Loop by the nodes of its body; returns these."""
    edit, node, body = context.edit, loop.node, loop.body
    arguments: dict[ir.Value, ir.Value] = {}
    for value, content in zip(body.inputs[:2], (np.int64(0), np.True_), strict=True):
        if is_needed(value):
            shape = shape_of(value)
            arguments[value] = edit.place(constant(np.full((1,) * len(shape or ()), content)), node)
    for state in range(loop.states):
        initial = loop.initial(state)
        assert initial is not None
        arguments[loop.entry(state)] = initial
    for old, new in arguments.items():
        edit.replace_uses(old, new)
    prefix = node.name or node.outputs[0].name or node.op_type
    version = opset(node)
    moved, returned = edit.inline(body, node, prefix)
    results = [arguments.get(value, value) for value in returned[1:]]
    for output in range(loop.states, len(node.outputs)):
        if is_needed(node.outputs[output]):
            first = with_axis(results[output], 0, version)
            edit.insert([first], node, [node])
            moved.append(first)
            results[output] = first.outputs[0]
    replacements = {old: new for old, new in zip(node.outputs, results, strict=True) if is_needed(old)}
    edit.replace_and_remove(node, replacements, moved)
    edit.sweep(moved)  # what only the condition needed
    return [inner for inner in moved if inner.graph is not None]

"""A Loop of at most one iteration, and a Scan over one slice, need no loop: more would multiply the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, need, opset, shape_of
from ortopt.onnx_ir_internals import is_needed
from ortopt.semantics import constant_tensor
from ortopt.transformer import Context
from ortopt.transformers.control_flow._body_inlining import BodyInlining, Inlining
from ortopt.transformers.control_flow._loops import Repeated, copied, repeated, scanned_along


class LoopUnrolling(BodyInlining):
    """``Loop`` of no iteration → the initial states; of one → the nodes of its body."""

    needs = ("Loop",)

    def decide(self, node: ir.Node, context: Context) -> Inlining:
        """One iteration, or none."""
        loop = repeated(node)
        if _iterations(loop):
            return Inlining(lambda: _unrolled(loop, context), "it makes one iteration")
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


def _unrolled(loop: Repeated, context: Context) -> list[ir.Node]:
    """Replace a Loop by the nodes of its body, in the first iteration; returns these."""
    arguments: dict[ir.Value, ir.Value] = {}
    for value, content in zip(loop.body.inputs[:2], (np.int64(0), np.True_), strict=True):
        if is_needed(value):
            shape = shape_of(value)
            arguments[value] = context.edit.place(constant(np.full((1,) * len(shape or ()), content)), loop.node)
    return _inlined(loop, arguments, lambda _output: 0, (), context)


class ScanElimination(BodyInlining):
    """``Scan`` over one slice → the nodes of its body; a result that is a scanned input again → that input."""

    needs = ("Scan",)

    def decide(self, node: ir.Node, context: Context) -> Inlining | None:
        """One slice; copies of scanned inputs are replaced in any case."""
        reasons: list[str] = []
        try:
            loop = repeated(node)
            _bypass_copies(loop, context, reasons)
            if node.graph is None:
                return None
            _need_one_slice(loop)
        except Refusal as refusal:
            raise Refusal("; ".join([*reasons, str(refusal)])) from refusal
        return Inlining(lambda: _without_scan(loop, context), "it scans one slice")


def _bypass_copies(loop: Repeated, context: Context, reasons: list[str]) -> None:
    """Replace results that join the slices of a scanned input in order by it; add to `reasons` why others stay."""
    node = loop.node
    slices = {inner: position for position, (_, inner) in enumerate(loop.scanned_inputs)}
    for output in range(loop.states, len(node.outputs)):
        result = node.outputs[output]
        position = slices.get(copied(loop.returned(output)))
        if position is None or not is_needed(result):
            continue
        source = loop.scanned_inputs[position][0]
        dims = None if source is None else shape_of(source)
        if source is None or dims is None:
            reasons.append("the rank of a scanned input is not known")
            continue
        number = output - loop.states
        (axis, backward), (along, reverses) = (
            scanned_along(loop, "input", position),
            scanned_along(loop, "output", number),
        )
        if axis % len(dims) != along % len(dims) or backward != reverses:
            reasons.append("a copy runs along another axis or in another direction")
            continue
        new = ir.node("Identity", [source]).outputs[0] if result.is_graph_output() else source
        context.substitute({result: new}, before=node, origin=(node,), why=f"{result.name} is {source.name} again")


def _need_one_slice(loop: Repeated) -> None:
    for position, (value, _) in enumerate(loop.scanned_inputs):
        dims = None if value is None else shape_of(value)
        if dims and dims[scanned_along(loop, "input", position)[0]] == 1:
            return
    need(False, "it may scan more than one slice", loop.node)


def _without_scan(loop: Repeated, context: Context) -> list[ir.Node]:
    """Replace a Scan by the nodes of its body, on the one slice; returns these."""
    added: list[ir.Node] = []
    arguments: dict[ir.Value, ir.Value] = {}
    for position, (value, inner) in enumerate(loop.scanned_inputs):
        assert value is not None
        if is_needed(inner):
            slice_ = ops.node_along("Squeeze", value, [scanned_along(loop, "input", position)[0]], opset(loop.node))
            context.edit.insert([slice_], loop.node, [loop.node])
            added.append(slice_)
            arguments[inner] = slice_.outputs[0]
    return _inlined(loop, arguments, lambda output: scanned_along(loop, "output", output)[0], added, context)


def _inlined(
    loop: Repeated,
    arguments: dict[ir.Value, ir.Value],
    axis: Callable[[int], int],
    added: Sequence[ir.Node],
    context: Context,
) -> list[ir.Node]:
    """Replace a loop by the nodes of its body, which runs once.

    Args:
        loop: The loop.
        arguments: What stands for inputs of the body that are no states.
        axis: The axis along which a scanned output collects.
        added: Nodes in front of the loop that make the arguments.
        context: The way to edit.

    Returns:
        The nodes in its place.
    """
    edit, node, version = context.edit, loop.node, opset(loop.node)
    for state in range(loop.states):
        initial = loop.initial(state)
        assert initial is not None
        arguments[loop.entry(state)] = initial
    for old, new in arguments.items():
        edit.replace_uses(old, new)
    moved, returned = edit.inline(loop.body, node)
    results = [arguments.get(value, value) for value in returned[loop.before_results :]]
    for output in range(loop.states, len(node.outputs)):
        if is_needed(node.outputs[output]):
            whole = ops.node_along("Unsqueeze", results[output], [axis(output - loop.states)], version)
            edit.insert([whole], node, [node])
            moved.append(whole)
            results[output] = whole.outputs[0]
    replacements = {old: new for old, new in zip(node.outputs, results, strict=True) if is_needed(old)}
    edit.replace_and_remove(node, replacements, [*added, *moved])
    edit.sweep(moved)  # what only a condition needed
    return [inner for inner in (*added, *moved) if inner.graph is not None]

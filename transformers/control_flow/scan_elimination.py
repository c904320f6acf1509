"""A Scan over one slice needs no loop, and slices that a Scan only joins again are a copy of its input."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import Refusal, attribute, need, opset, shape_of
from ortopt.onnx_ir_internals import is_needed
from ortopt.options import TransformerLevel
from ortopt.transformer import Context
from ortopt.transformers.control_flow._body_inlining import BodyInlining, Inlining
from ortopt.transformers.control_flow._loops import Repeated, copied, repeated, with_axis, without_axis


class ScanElimination(BodyInlining):
    """``Scan`` over one slice → the nodes of its body; a result that is a scanned input again → that input."""

    levels = (TransformerLevel.LEVEL1,)
    op = "Scan"

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
        return Inlining(lambda: _inline(loop, context), "it scans one slice")


def _axis(loop: Repeated, kind: str, position: int) -> int:
    """The axis along which an input or output is scanned."""
    axes: tuple[int, ...] = attribute(loop.node, f"scan_{kind}_axes", ())
    return axes[position] if position < len(axes) else 0


def _direction(loop: Repeated, kind: str, position: int) -> int:
    directions: tuple[int, ...] = attribute(loop.node, f"scan_{kind}_directions", ())
    return directions[position] if position < len(directions) else 0


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
        axes = _axis(loop, "input", position) % len(dims), _axis(loop, "output", number) % len(dims)
        if axes[0] != axes[1] or _direction(loop, "input", position) != _direction(loop, "output", number):
            reasons.append("a copy runs along another axis or in another direction")
            continue
        new = ir.node("Identity", [source]).outputs[0] if result.is_graph_output() else source
        context.substitute({result: new}, before=node, origin=(node,), why=f"{result.name} is {source.name} again")


def _need_one_slice(loop: Repeated) -> None:
    for position, (value, _) in enumerate(loop.scanned_inputs):
        dims = None if value is None else shape_of(value)
        if dims and dims[_axis(loop, "input", position)] == 1:
            return
    need(False, "it may scan more than one slice", loop.node)


def _inline(loop: Repeated, context: Context) -> list[ir.Node]:
    """Replace the Scan by the nodes of its body; returns these."""
    edit, node, body = context.edit, loop.node, loop.body
    version = opset(node)
    added: list[ir.Node] = []
    arguments: dict[ir.Value, ir.Value] = {}
    for state in range(loop.states):
        initial = loop.initial(state)
        assert initial is not None
        arguments[loop.entry(state)] = initial
    for position, (value, inner) in enumerate(loop.scanned_inputs):
        assert value is not None
        if is_needed(inner):
            slice_ = without_axis(value, _axis(loop, "input", position), version)
            edit.insert([slice_], node, [node])
            added.append(slice_)
            arguments[inner] = slice_.outputs[0]
    for old, new in arguments.items():
        edit.replace_uses(old, new)
    moved, returned = edit.inline(body, node, node.name or node.outputs[0].name or node.op_type)
    results = [arguments.get(value, value) for value in returned]
    for output in range(loop.states, len(node.outputs)):
        if is_needed(node.outputs[output]):
            whole = with_axis(results[output], _axis(loop, "output", output - loop.states), version)
            edit.insert([whole], node, [node])
            moved.append(whole)
            results[output] = whole.outputs[0]
    replacements = {old: new for old, new in zip(node.outputs, results, strict=True) if is_needed(old)}
    edit.replace_and_remove(node, replacements, [*added, *moved])
    edit.sweep(moved)
    return [inner for inner in (*added, *moved) if inner.graph is not None]

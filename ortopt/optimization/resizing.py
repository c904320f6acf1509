"""Fixed sizes of inputs that are changed: whether the original runs with other ones, and what in it holds the old."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import onnx_ir as ir

from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import CancellationToken
from ortopt.errors import InvalidModelError
from ortopt.graph.facts import all_contents, dims_of
from ortopt.graph.symbolic import is_invented, is_known
from ortopt.semantics import constant_tensor
from ortopt.terminal_text import node_name, one_line, quoted

if TYPE_CHECKING:
    from ortopt.optimization.pipeline import Pipeline
    from ortopt.verification.verify import Reference

_FAILED: Final = re.compile(r"Name:'(?P<run>[^']*)'|Node ?\((?P<load>.*?)\) Op ?\(")
"""How ONNX Runtime names the node that fails, when it runs and when it loads a model."""

_SIZED: Final = frozenset({"Reshape", "Expand", "Resize", "Upsample", "Tile", "Slice", "Pad"})
"""Ops that take sizes as operands."""

_MAX_SHOWN: Final = 8
"""Elements of a constant that a message shows."""


def name_nodes(model: ir.Model) -> None:
    """Name the nodes of the main graph that have no name after their results: a message names the one that fails."""
    for node in model.graph:
        node.name = node.name or next((value.name for value in node.outputs if value.name), None)


def check_sizes(reference: Reference, pipeline: Pipeline, providers: Sequence[str], token: CancellationToken) -> None:
    """Refuse sizes with which an original does not run although it runs with its own.

    Args:
        reference: The original in the new sizes; it runs here.
        pipeline: Loads the original.
        providers: What runs it.
        token: Cancellation token.

    Raises:
        InvalidModelError: If it does not run in them; the message names the node that holds the old size.
        UsageError: If inputs to verify with are given that have other sizes.
    """
    from ortopt.verification.verify import Reference

    failure = reference.run()
    if failure is None:
        return
    with Reference(pipeline.original(token), providers=providers, token=token) as original:
        if original.run() is not None:  # it does not run here at all, as verification will say
            return
    shapes = pipeline.options.input_shapes
    asked = ", ".join(f"{quoted(name)} of the shape {_sizes(shapes[name])}" for name in sorted(pipeline.resized))
    culprit = _culprit(pipeline.original(token), pipeline.load(token), failure.reason, token)
    raise InvalidModelError(f"the model does not run with {asked}: {culprit}")


def _sizes(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('_' if size is None else str(size) for size in shape)}]"


def _culprit(old: ir.Model, new: ir.Model, reason: str, token: CancellationToken) -> str:
    """What holds the old size, in words; what ONNX Runtime says where that is not found."""
    match = _FAILED.search(reason)
    name = None if match is None else match["run"] or match["load"]
    name_nodes(new)
    failing = next((node for node in new.graph if node.name == name), None) if name else None
    if failing is None:
        return one_line(reason)
    for model in (old, new):
        infer_model(model, token)
    before = {value.name or "": value for node in old.graph for value in node.outputs}
    holder = _holder(failing, before)
    fails = f"{failing.op_type} {quoted(node_name(failing))} fails"
    if holder is None:
        return f"{fails} ({one_line(reason)})"
    named = f"{holder.op_type} {quoted(node_name(holder))}"
    operand = _operand_of(holder, before)
    if holder is failing:
        return f"{named} holds the old size in {operand}"
    if _is_pinned(holder, before):
        return f"{named} holds the old size in {operand}, and {fails}"
    return f"{fails}; the nearest fixed size before it is in {named}: {operand}"


def _holder(failing: ir.Node, before: Mapping[str, ir.Value]) -> ir.Node | None:
    """The node that holds the old size: the one that fails by an operand of its own, or the nearest before it."""
    if any(value is not None and constant_tensor(value) and _holds(value, before) for value in _sizes_of(failing)):
        return failing
    holding = [
        node
        for node in (failing, *_above(failing))
        if node.op_type in _SIZED and any(_holds(value, before) for value in _sizes_of(node))
    ]
    return next((node for node in holding if _is_pinned(node, before)), None) or next(iter(holding), None)


def _sizes_of(node: ir.Node) -> Sequence[ir.Value | None]:
    """The operands by which a node can hold a size: of ops that take sizes these, of others all."""
    return node.inputs[1:] if node.op_type in _SIZED else node.inputs


def _above(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes that a node depends on, the nearest first."""
    seen, pending = {node}, [node]
    while pending:
        layer = []
        for current in pending:
            for value in current.inputs:
                producer = None if value is None else value.producer()
                if producer is not None and producer not in seen:
                    seen.add(producer)
                    layer.append(producer)
        yield from layer
        pending = layer


def _changed(value: ir.Value | None, before: Mapping[str, ir.Value]) -> bool:
    """Whether the shape of a value is another one than with the old sizes."""
    if value is None or value.const_value is not None:
        return False
    if value.is_graph_input():
        return True
    old = before.get(value.name or "")
    return old is not None and (dims_of(old), all_contents(old)) != (dims_of(value), all_contents(value))


def _is_pinned(node: ir.Node, before: Mapping[str, ir.Value]) -> bool:
    """Whether a node gives what it gave although it reads something of another size."""
    known = all(dims_of(value) is not None for value in node.outputs)
    kept = known and not any(_changed(value, before) for value in node.outputs)
    return kept and any(_changed(value, before) for value in node.inputs)


def _holds(value: ir.Value | None, before: Mapping[str, ir.Value]) -> bool:
    """Whether an operand holds a size: a constant by its shape or its elements, a computed shape by its elements."""
    if value is None:
        return False
    known, tensor = all_contents(value), constant_tensor(value)
    if tensor is not None:
        return tensor.size > 1 or any(size not in (0, 1, -1) for size in known or ())
    old = all_contents(before[value.name or ""]) if value.name in before else None
    if known is None or old is None or len(known) != len(old):
        return False
    fixed = [(now, then) for now, then in zip(known, old, strict=True) if isinstance(then, int)]
    return all(now == then for now, then in fixed) and any(then > 1 for _, then in fixed)


def _operand_of(node: ir.Node, before: Mapping[str, ir.Value]) -> str:
    """The operand by which a node holds a size, in words."""
    value = next(value for value in _sizes_of(node) if _holds(value, before))
    assert value is not None
    known, tensor = all_contents(value), constant_tensor(value)
    what = f"its constant {quoted(value.name)}" if tensor is not None else quoted(value.name)
    if known is not None and len(known) <= _MAX_SHOWN:
        sizes = ("?" if not is_known(size) or is_invented(size) else str(size) for size in known)
        return f"{what} = [{', '.join(sizes)}]"
    return f"{what} of the shape {[] if tensor is None else list(tensor.shape.numpy())}"

"""Which nodes cannot fail, whatever their inputs hold: only those may run where the model would not have run them.

A node that stands in a branch not taken, or in a loop that makes no iteration, never runs; moved out, it does. What
could fail there, by an index out of range, a division by zero, shapes that do not fit, must stay.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    FLOATS,
    Dim,
    Refusal,
    array_of,
    attribute,
    dims,
    dtype,
    inputs,
    integers,
    is_constant,
    need,
    opset,
    optional,
    rank,
    same_dim,
)
from ortopt.semantics.op_traits import BROADCASTING, REDUCTIONS, SHAPE_QUERIES, UNARY
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM, BROADCASTS_FROM, ONE_AXIS_FROM

Check = Callable[[ir.Node], None]
NUMBERS = frozenset(kind for kind in ir.DataType if kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING))

NEVER_FAIL = (UNARY - {"Cast"}) | SHAPE_QUERIES  # a Cast of text fails where it is no number
FAIL_BY_SHAPES = BROADCASTING - {"BitShift"}  # a shift by more bits than there are is undefined


def check_cannot_fail(node: ir.Node) -> None:
    """Go on only if a node cannot fail, as long as there is memory for its result.

    Args:
        node: A node of a graph.

    Raises:
        Refusal: If it could, or nothing is known of its op.
    """
    check = _CHECKS.get(node.op_type) if not node.domain else None
    if check is None:
        raise Refusal(f"{node.op_type} may fail", node)
    check(node)


def _unary(node: ir.Node) -> None:
    inputs(node, 1)


def _broadcasting(node: ir.Node) -> None:
    """The shapes provably fit, and integers are not divided by what may be 0."""
    need(opset(node) >= BROADCASTS_FROM, "before opset 7 operands do not broadcast", node)
    operands = inputs(node, len(node.inputs))
    result: tuple[Dim, ...] = ()
    for value in operands:
        result = _broadcast(result, dims(value), node)
    if node.op_type in ("Div", "Mod", "Pow") and dtype(operands[0]) not in FLOATS:
        need(node.op_type != "Pow", "Pow of integers may fail", node)
        divisor = operands[1]
        need(is_constant(divisor), "it may divide by zero", divisor)
        array = array_of(divisor)  # the lowest number divided by -1 does not fit either
        need(array.dtype.kind in "iu" and not np.isin(array, (0, -1)).any(), "it may divide by zero", divisor)


def _broadcast(a: tuple[Dim, ...], b: tuple[Dim, ...], node: ir.Node) -> tuple[Dim, ...]:
    if len(a) < len(b):
        a, b = b, a
    b = (1,) * (len(a) - len(b)) + b
    joined: list[Dim] = []
    for one, other in zip(a, b, strict=True):
        need(_is_one(one) or _is_one(other) or same_dim(one, other), "the shapes may not fit", node)
        joined.append(other if _is_one(one) else one)
    return tuple(joined)


def _is_one(dim: Dim) -> bool:
    return isinstance(dim, int) and dim == 1


def _cast(node: ir.Node) -> None:
    (value,) = inputs(node, 1)
    need(dtype(value) in NUMBERS, "text may not be a number", value)
    need(attribute(node, "to", 0) != ir.DataType.STRING, "it makes text", node)


def _clip(node: ir.Node) -> None:
    inputs(node, 1)
    if opset(node) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
        return
    for position in (1, 2):
        bound = optional(node, position)
        need(bound is None or rank(bound) == 0, "a bound may be no scalar", bound)


def _softmax(node: ir.Node) -> None:
    (value,) = inputs(node, 1)
    ops.Softmax(node).axis_of(rank(value))


def _transpose(node: ir.Node) -> None:
    (value,) = inputs(node, 1)
    ops.Transpose(node).order_of(rank(value))


def _matmul(node: ir.Node) -> None:
    first, second = (dims(value) for value in inputs(node, 2))
    need(len(first) >= 2 and len(second) >= 2, "an operand is a vector", node)
    need(same_dim(first[-1], second[-2]), "the shapes may not fit", node)
    _broadcast(first[:-2], second[:-2], node)


def _gemm(node: ir.Node) -> None:
    a, b = inputs(node, 2)
    first, second = dims(a, 2), dims(b, 2)
    if ops.Gemm(node).transposes_a:
        first = first[::-1]
    if ops.Gemm(node).transposes_b:
        second = second[::-1]
    need(same_dim(first[1], second[0]), "the shapes may not fit", node)
    added = optional(node, 2)
    if added is not None:
        whole = (first[0], second[1])
        own = dims(added)
        need(len(own) <= 2, "the shapes may not fit", node)
        for one, to in zip(own, whole[2 - len(own) :], strict=True):
            need(_is_one(one) or same_dim(one, to), "the shapes may not fit", node)


def _concat(node: ir.Node) -> None:
    operands = inputs(node, len(node.inputs))
    shapes = [dims(value) for value in operands]
    at = ops.Concat(node).axis_of(len(shapes[0]))
    for shape in shapes[1:]:
        need(len(shape) == len(shapes[0]), "the shapes may not fit", node)
        for index, (one, other) in enumerate(zip(shapes[0], shape, strict=True)):
            need(index == at or same_dim(one, other), "the shapes may not fit", node)


def _vector(value: ir.Value) -> ir.Value:
    """A list of integers, which ONNX Runtime's kernels want to be of rank 1 even if it is of one element."""
    need(rank(value) == 1, "it may be no vector", value)
    return value


def _axes(node: ir.Node, of: int) -> tuple[int, ...]:
    """The axes of a Squeeze, Unsqueeze or reduction, counted from the front, each once."""
    given = optional(node, 1)
    if given is not None:
        _vector(given)
    listed = ops.Axes(node).stated_axes
    if not listed:
        return tuple(range(of))
    axes = ops.Axes(node).axes_of(of)
    need(len(axes) == len(listed), "an axis is listed twice", node)
    return axes


def _unsqueeze(node: ir.Node) -> None:
    (value,) = inputs(node, 1)
    _axes(node, rank(value) + len(ops.Unsqueeze(node).stated_axes))


def _squeeze(node: ir.Node) -> None:
    (value,) = inputs(node, 1)
    shape = dims(value)
    given = bool(ops.Squeeze(node).stated_axes)
    need(not given or all(_is_one(shape[at]) for at in _axes(node, len(shape))), "an axis may not be 1", node)


def _reduction(node: ir.Node) -> None:
    (value,) = inputs(node, 1)
    shape = dims(value)
    axes = _axes(node, len(shape))
    need(all(symbolic.at_least(shape[at], 1) for at in axes), "it may reduce nothing", node)


def _reshape(node: ir.Node) -> None:
    """The target's elements are known, and are as many as those of the input."""
    value, target = inputs(node, 2)
    known = contents(_vector(target))
    if known is None:
        raise Refusal("the target is not known", target)
    source, result = dims(value), dims(node.outputs[0])
    need(all(symbolic.at_least(dim, 1) for dim in (*known, *source)), "the target may not fit", target)
    need(
        same_dim(symbolic.product(source), symbolic.product(known)) and len(known) == len(result),
        "the target may not fit",
        target,
    )


def _flatten(node: ir.Node) -> None:
    (value,) = inputs(node, 1)
    ops.Flatten(node).axis_of(rank(value))


def _expand(node: ir.Node) -> None:
    value, target = inputs(node, 2)
    known = contents(_vector(target))
    if known is None:
        raise Refusal("the target is not known", target)
    need(all(symbolic.at_least(dim, 0) for dim in known), "a dimension may be negative", target)
    _broadcast(dims(value), known, node)


def _constant_of_shape(node: ir.Node) -> None:
    (target,) = inputs(node, 1)
    known = contents(_vector(target))
    need(known is not None and all(symbolic.at_least(dim, 0) for dim in known), "a dimension may be negative", target)


def _gather(node: ir.Node) -> None:
    """Constant indices within a fixed dimension."""
    value, indices = inputs(node, 2)
    shape = dims(value)
    size = shape[ops.Gather(node).axis_of(len(shape))]
    if not isinstance(size, int) or not is_constant(indices):
        raise Refusal("an index may be out of range", indices)
    array = array_of(indices)
    need(bool(((array >= -size) & (array < size)).all()), "an index may be out of range", indices)


def _slice(node: ir.Node) -> None:
    """Known axes and steps; bounds are clamped, whatever they are."""
    need(opset(node) >= BOUNDS_ARE_INPUTS_FROM["Slice"], "before opset 10 bounds are attributes", node)
    value, starts, ends = inputs(node, 3)
    for bound in (starts, ends):
        need(contents(_vector(bound)) is not None, "the bounds are not known", bound)
    count = len(contents(starts) or ())
    need(len(contents(ends) or ()) == count, "the bounds do not fit one another", node)
    listed = optional(node, 3)
    axes = tuple(range(count)) if listed is None else integers(_vector(listed))
    of = rank(value)
    need(len(axes) == count and all(-of <= at < of for at in axes), "an axis is out of range", node)
    need(len({at % of for at in axes}) == count, "an axis is listed twice", node)
    steps = optional(node, 4)
    taken = (1,) * count if steps is None else integers(_vector(steps))
    need(len(taken) == count and 0 not in taken, "a step may be 0", steps)


_CHECKS: dict[str, Check] = {
    **dict.fromkeys(NEVER_FAIL, _unary),
    **dict.fromkeys(FAIL_BY_SHAPES, _broadcasting),
    **dict.fromkeys(ONE_AXIS_FROM, _softmax),
    **dict.fromkeys(REDUCTIONS, _reduction),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

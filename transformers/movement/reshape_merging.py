"""Of several ops in a row that only change a value's shape, the last one decides the result."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import Dim, Refusal, attribute, inputs, is_constant, need, opset, producer, same_dim, shape_of
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.views.reading import dims_after, through
from ortopt.views.targets import INFER, flatten_axis, ones_beside, target_of

ALLOWS_ZERO = 14
FLATTENS_ALL_TYPES = 9
ALONG_AXES = ("Squeeze", "Unsqueeze")


class Found(Struct, frozen=True):
    """The last op, the input of the first, and the op that replaces both (none if they change nothing together).

    `target` is a Reshape's shape or the axes of a Squeeze or Unsqueeze; a value where it is kept.
    """

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    op: str = ""
    target: tuple[int, ...] | ir.Value = ()
    attributes: tuple[tuple[str, int], ...] = ()


class ReshapeMerging(RewriteRule[Found]):
    """``Reshape``, ``Flatten``, ``Squeeze``, ``Unsqueeze`` of one another → one of them, or ``x``.

    A ``Transpose`` that only moves dimensions of 1 is as good as a Reshape before another.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("reshape_fusion",)
    roots = tuple(sorted(RESHAPING))
    opsets = (5, NEWEST_OPSET)  # before, a Reshape's shape was an attribute

    def match(self, root: ir.Node) -> Found:
        """Two of these ops in a row; the first may have other users, and stays for them."""
        (middle,) = inputs(root, 1)
        first = producer(middle, *sorted(RESHAPING), "Transpose")
        (x,) = inputs(first, 1)
        source = shape_of(x)
        if first.op_type == "Transpose":
            need(source is not None and through(x, first).keeps_order, "a Transpose moves more than ones", first)
        between = None if source is None else _dims_after(first, source)
        result = None if between is None else _dims_after(root, between)
        if source is not None and result is not None and symbolic.same_shape(source, result):
            return Found((root,), x)
        if root.op_type == first.op_type and root.op_type in ALONG_AXES:
            merged = _merged(first, root, source)
            if merged is not None:
                return Found((root,), x, root.op_type, merged)
        mixed = {root.op_type, first.op_type} == set(ALONG_AXES)
        computed = root.op_type == "Reshape" and not is_constant(root.inputs[1])
        if source is not None and result is not None and (mixed or computed):
            renamed = _by_ones(source, result)
            if renamed is not None:
                return Found((root,), x, *renamed)
        if root.op_type == "Reshape" and _reads_alike(root, source, between):
            kept = (("allowzero", 1),) if attribute(root, "allowzero", 0) == 1 else ()
            return Found((root,), x, "Reshape", inputs(root, 2)[1], kept)
        if source is None or result is None:
            raise Refusal("the shapes are not known", root)
        return _by_shape(root, x, source, result)

    def rewrite(self, found: Found) -> ir.Node | ir.Value:
        """Build the one op."""
        if not found.op:
            return found.source
        if found.op in ALONG_AXES:
            assert not isinstance(found.target, ir.Value)
            return ops.node_along(found.op, found.source, found.target, opset(found.nodes[0]))
        target = found.target if isinstance(found.target, ir.Value) else constant(found.target)
        return ir.node(found.op, [found.source, target][: 1 + (found.op == "Reshape")], dict(found.attributes))


def _dims_after(node: ir.Node, source: Sequence[Dim]) -> tuple[Dim, ...] | None:
    try:
        return dims_after(node, source)
    except Refusal:
        return None


def _by_ones(source: Sequence[Dim], result: Sequence[Dim]) -> tuple[str, tuple[int, ...]] | None:
    """The Unsqueeze or Squeeze that gives a shape, if it has only dimensions of 1 more, or less."""
    if len(source) == len(result):
        return None
    op, few, many = ("Unsqueeze", source, result) if len(source) < len(result) else ("Squeeze", result, source)
    ones = ones_beside(few, many)
    return None if ones is None else (op, ones)


def _merged(first: ir.Node, last: ir.Node, source: Sequence[Dim] | None) -> tuple[int, ...] | None:
    """The axes of one Squeeze or Unsqueeze that does what two do; None if they cannot be told."""
    sign = 1 if last.op_type == "Unsqueeze" else -1
    try:
        inner = _positions(first, None if source is None else len(source))
        outer = _positions(last, None if source is None else len(source) + sign * len(inner))
    except Refusal:
        return None
    fixed, moved = (outer, inner) if sign > 0 else (inner, outer)
    free = [axis for axis in range(max(moved) + len(fixed) + 1) if axis not in fixed]
    return tuple(sorted({*fixed, *(free[axis] for axis in moved)}))


def _positions(node: ir.Node, rank: int | None) -> tuple[int, ...]:
    """The axes of a Squeeze or Unsqueeze from the front, where its input has some rank; None is any."""
    stated = ops.Axes(node).stated_axes
    if rank is None:
        need(min(stated, default=-1) >= 0, "it is not known which axes they are", node)
        return tuple(sorted(stated))
    return ops.Axes(node).axes_of(rank + (len(stated) if node.op_type == "Unsqueeze" else 0))


def _reads_alike(root: ir.Node, source: Sequence[Dim] | None, between: Sequence[Dim] | None) -> bool:
    """Whether a Reshape's target means the same for the input of the first op."""
    if attribute(root, "allowzero", 0) == 1:
        return True
    target = contents(inputs(root, 2)[1])
    if target is None:
        return False
    copied = [axis for axis, dim in enumerate(target) if not same_dim(dim, INFER) and not symbolic.at_least(dim, 1)]
    if not copied:
        return True
    if source is None or between is None:
        return False
    shared = min(len(source), len(between))
    return all(axis < shared and same_dim(source[axis], between[axis]) for axis in copied)


def _by_shape(root: ir.Node, x: ir.Value, source: Sequence[Dim], result: Sequence[Dim]) -> Found:
    """A Reshape with a constant target, or a Flatten."""
    numbers = tuple(dim for dim in result if isinstance(dim, int))
    if len(numbers) == len(result):
        need(0 not in numbers or opset(root) >= ALLOWS_ZERO, "a dimension of 0 needs opset 14", root)
        return Found((root,), x, "Reshape", numbers, (("allowzero", 1),) if 0 in numbers else ())
    target = target_of(source, result)
    free = [axis for axis, element in enumerate(target) if element == INFER]
    if not free:
        return Found((root,), x, "Reshape", tuple(target))
    at = flatten_axis(source, result) if opset(root) >= FLATTENS_ALL_TYPES else None
    others = [dim for axis, dim in enumerate(result) if axis != free[0]]
    infers = len(free) == 1 and (all(symbolic.at_least(dim, 1) for dim in others) or _infers(root, free[0]))
    # A runtime may lose a dimension of 1 in a Flatten (OpenVINO 2026.4).
    for_any = infers and scope.of(scope.graph_of(root)).options.target.keeps_to_onnx
    if at is not None and not for_any:
        return Found((root,), x, "Flatten", (), (("axis", at),))
    need(len(free) == 1, "several dimensions are neither numbers nor the input's own", root)
    need(infers, "a dimension beside the one to infer may be 0", root)
    return Found((root,), x, "Reshape", tuple(target))


def _infers(root: ir.Node, axis: int) -> bool:
    """Whether the last op infers the dimension at an axis itself, and so cannot run beside a 0 either."""
    target = contents(inputs(root, 2)[1]) if root.op_type == "Reshape" else None
    return target is not None and same_dim(target[axis], INFER)

"""Of several ops in a row that only change a value's shape, the last one decides the result."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    inputs,
    is_constant,
    need,
    opset,
    producer,
    same_dim,
    shape_of,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM

COPY, INFER = 0, -1
ALLOWS_ZERO = 14
FLATTENS_ALL_TYPES = 9


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
            need(source is not None and _moves_ones(first, source), "a Transpose moves more than ones", first)
        between = None if source is None else _shape_after(first, source)
        result = None if between is None else _shape_after(root, between)
        if source is not None and result is not None and symbolic.same_shape(source, result):
            return Found((root,), x)
        if root.op_type == first.op_type and root.op_type in ("Squeeze", "Unsqueeze"):
            merged = _merged(first, root, source)
            if merged is not None:
                return Found((root,), x, root.op_type, merged)
        mixed = {root.op_type, first.op_type} == {"Squeeze", "Unsqueeze"}
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
        version = opset(found.nodes[0])
        attributes: dict[str, int | Sequence[int]] = dict(found.attributes)
        inputs = [found.source]
        if isinstance(found.target, ir.Value):
            inputs.append(found.target)
        elif found.op == "Reshape" or (found.op != "Flatten" and version >= AXES_ARE_AN_INPUT_FROM[found.op]):
            inputs.append(constant(np.array(found.target, np.int64)))
        elif found.op != "Flatten":
            attributes["axes"] = found.target
        return ir.node(found.op, inputs, attributes)


def _by_ones(source: Sequence[Dim], result: Sequence[Dim]) -> tuple[str, tuple[int, ...]] | None:
    """The Unsqueeze or Squeeze that gives a shape, if it has only dimensions of 1 more, or less."""
    if len(source) == len(result):
        return None
    op, few, many = ("Unsqueeze", source, result) if len(source) < len(result) else ("Squeeze", result, source)
    rest = list(few)
    ones = []
    for axis, dim in enumerate(many):
        if rest and same_dim(rest[0], dim):
            rest.pop(0)
        elif same_dim(dim, 1):
            ones.append(axis)
        else:
            return None
    return None if rest else (op, tuple(ones))


def _axes(node: ir.Node) -> tuple[int, ...] | None:
    """The axes of a Squeeze or Unsqueeze; empty where they are left out.

    Returns:
        None if they are not known.
    """
    try:
        return ops.Axes(node).stated_axes
    except Refusal:
        return None


def _numbers(dims: Sequence[Dim]) -> tuple[int, ...] | None:
    numbers = tuple(dim for dim in dims if isinstance(dim, int))
    return numbers if len(numbers) == len(dims) else None


def _positions(axes: Sequence[int], rank: int | None) -> tuple[int, ...] | None:
    """Axes from the front, sorted; None if they cannot be told or make no sense."""
    if rank is None:
        positions = sorted(axes)
        valid = all(axis >= 0 for axis in positions)
    else:
        valid = all(-rank <= axis < rank for axis in axes)
        positions = sorted(axis % rank for axis in axes) if valid else []
    return tuple(positions) if valid and len(set(positions)) == len(positions) else None


def _shape_after(node: ir.Node, source: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The shape of a node's result for an input of some shape, from the node alone, not from what a file declares."""
    if node.op_type == "Reshape":
        return _reshaped(node, source)
    if node.op_type == "Transpose":
        return tuple(source[axis] for axis in ops.Transpose(node).order_of(len(source)))
    if node.op_type == "Flatten":
        axis = ops.Flatten(node).axis_of(len(source))
        return symbolic.product(source[:axis]), symbolic.product(source[axis:])
    axes = _axes(node)
    if axes is None:
        return None
    if node.op_type == "Unsqueeze":
        inserted = _positions(axes, len(source) + len(axes))
        if inserted is None:
            return None
        rest = iter(source)
        return tuple(1 if axis in inserted else next(rest) for axis in range(len(source) + len(axes)))
    if axes:
        dropped = _positions(axes, len(source))
        return None if dropped is None else tuple(dim for axis, dim in enumerate(source) if axis not in dropped)
    if not all(isinstance(dim, int) or symbolic.provably_different(dim, 1) for dim in source):
        return None
    return tuple(dim for dim in source if not same_dim(dim, 1))


def _moves_ones(transpose: ir.Node, source: Sequence[Dim]) -> bool:
    """Whether the elements of a value of some shape stay in their order."""
    moved = [axis for axis in ops.Transpose(transpose).order_of(len(source)) if not same_dim(source[axis], 1)]
    return moved == sorted(moved)


def _reshaped(node: ir.Node, source: Sequence[Dim]) -> tuple[Dim, ...] | None:
    target = contents(inputs(node, 2)[1])
    if target is None:
        return None
    copies = attribute(node, "allowzero", 0) != 1
    result: list[Dim] = []
    for axis, dim in enumerate(target):
        if same_dim(dim, COPY) and copies:
            need(axis < len(source), "it copies a dimension that is not there", node)
            result.append(source[axis])
        elif isinstance(dim, int) or symbolic.at_least(dim, 1) or not copies:
            result.append(dim)
        else:  # a computed 0 copies a multiple of it, which is 0 then too; where nothing is to be copied it is an error
            result.append(dim if axis >= len(source) or symbolic.divides(dim, source[axis]) else symbolic.UNKNOWN)
    for axis, dim in enumerate(result):
        if same_dim(dim, INFER):
            others = symbolic.product([*result[:axis], *result[axis + 1 :]])
            quotient = symbolic.quotient_exact(symbolic.product(source), others)
            result[axis] = symbolic.UNKNOWN if quotient is None else quotient
            break
    return tuple(result)


def _merged(first: ir.Node, last: ir.Node, source: Sequence[Dim] | None) -> tuple[int, ...] | None:
    """The axes of one Squeeze or Unsqueeze that does what two do; None if they cannot be told."""
    inner, outer = _axes(first), _axes(last)
    if not inner or not outer:
        return None
    sign = 1 if last.op_type == "Unsqueeze" else -1
    rank = None if source is None else len(source)
    after_first = None if rank is None else rank + sign * len(inner)
    in_first = _positions(inner, after_first if sign > 0 else rank)
    if sign > 0:
        in_last = _positions(outer, None if after_first is None else after_first + len(outer))
    else:
        in_last = _positions(outer, after_first)
    if in_first is None or in_last is None:
        return None
    fixed, moved = (in_last, in_first) if sign > 0 else (in_first, in_last)
    free = [axis for axis in range(max(moved) + len(fixed) + 1) if axis not in fixed]
    return tuple(sorted({*fixed, *(free[axis] for axis in moved)}))


def _reads_alike(root: ir.Node, source: Sequence[Dim] | None, between: Sequence[Dim] | None) -> bool:
    """Whether a Reshape's target means the same for the input of the first op."""
    if attribute(root, "allowzero", 0) == 1:
        return True
    target = contents(inputs(root, 2)[1])
    if target is None:
        return False
    for axis, dim in enumerate(target):
        if same_dim(dim, INFER) or symbolic.at_least(dim, 1):
            continue
        if source is None or between is None or axis >= min(len(source), len(between)):
            return False
        if not same_dim(source[axis], between[axis]):
            return False
    return True


def _by_shape(root: ir.Node, x: ir.Value, source: Sequence[Dim], result: Sequence[Dim]) -> Found:
    """A Reshape with a constant target, or a Flatten."""
    numbers = _numbers(result)
    if numbers is not None:
        need(0 not in numbers or opset(root) >= ALLOWS_ZERO, "a dimension of 0 needs opset 14", root)
        return Found((root,), x, "Reshape", numbers, (("allowzero", 1),) if 0 in numbers else ())
    target = [_element(dim, source, axis) for axis, dim in enumerate(result)]
    free = [axis for axis, element in enumerate(target) if element == INFER]
    if not free:
        return Found((root,), x, "Reshape", tuple(target))
    if len(result) == 2 and opset(root) >= FLATTENS_ALL_TYPES:
        for axis in range(len(source) + 1):
            if symbolic.same_shape((symbolic.product(source[:axis]), symbolic.product(source[axis:])), result):
                return Found((root,), x, "Flatten", (), (("axis", axis),))
    need(len(free) == 1, "several dimensions are neither numbers nor the input's own", root)
    others = [dim for axis, dim in enumerate(result) if axis != free[0]]
    positive = all(symbolic.at_least(dim, 1) for dim in others)
    need(positive or _infers(root, free[0]), "a dimension beside the one to infer may be 0", root)
    return Found((root,), x, "Reshape", tuple(target))


def _infers(root: ir.Node, axis: int) -> bool:
    """Whether the last op infers the dimension at an axis itself, and so cannot run beside a 0 either."""
    target = contents(inputs(root, 2)[1]) if root.op_type == "Reshape" else None
    return target is not None and same_dim(target[axis], INFER)


def _element(dim: Dim, source: Sequence[Dim], axis: int) -> int:
    """The target's element for a dimension: a number, or that it is copied or inferred."""
    if isinstance(dim, int) and dim > 0:
        return dim
    return COPY if axis < len(source) and same_dim(dim, source[axis]) else INFER

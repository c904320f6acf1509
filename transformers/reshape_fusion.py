"""A target that is computed from the input's own shape says no more than zeros, numbers and one -1 can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.graph import facts, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, dims, is_constant, need, opset, shape_of, values
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule

COPY, INFER = 0, -1


class Found(NamedTuple):
    """The Reshape, what it reshapes, and how: a target, or the axis of a Flatten."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    target: tuple[int, ...]
    allow_zero: bool
    flatten_axis: int | None


class ReshapeFusion(RewriteRule[Found]):
    """``Reshape(x, Concat(Shape(x)…))`` → ``Reshape(x, constant)`` of 0s, numbers and at most one -1."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("shape_folding",)
    roots = ("Reshape",)
    opsets = (5, 1_000)

    def match(self, root: ir.Node) -> Found:
        """A computed target of which each element is a number, a dimension of the input at its place, or the rest."""
        x, computed = values(root, 2)
        need(not is_constant(computed), "the target is constant already", computed)
        result = dims(root.outputs[0])
        source = shape_of(x)
        numbers = tuple(dim for dim in result if isinstance(dim, int))
        if len(numbers) == len(result):
            need(0 not in numbers or opset(root) >= 14, "a dimension of 0 needs opset 14", root)
            return Found((root,), x, numbers, 0 in numbers, None)
        target = [_element(dim, source, axis) for axis, dim in enumerate(result)]
        open_axes = [axis for axis, element in enumerate(target) if element == INFER]
        axis = _flatten_axis(source, result) if open_axes else None
        if axis is not None and opset(root) >= 9:
            return Found((root,), x, (), False, axis)
        need(len(open_axes) <= 1, "several dimensions are neither numbers nor the input's own", computed)
        if open_axes and not _is_inferred_already(computed, open_axes[0]):
            others = [dim for axis, dim in enumerate(result) if axis != open_axes[0]]
            need(
                all(symbolic.at_least(dim, 1) for dim in others),
                "a dimension beside the one to infer may be 0",
                computed,
            )
        return Found((root,), x, tuple(target), False, None)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Reshape with its constant target."""
        if found.flatten_axis is not None:
            return ir.node("Flatten", [found.x], attributes={"axis": found.flatten_axis})
        target = constant(np.array(found.target, dtype=np.int64))
        return ir.node("Reshape", [found.x, target], attributes={"allowzero": 1} if found.allow_zero else {})


def _element(dim: Dim, source: Sequence[Dim] | None, axis: int) -> int:
    """What the target says of a dimension: a number, that it is copied, or that it is inferred."""
    if isinstance(dim, int) and dim > 0:
        return dim
    if source is not None and axis < len(source) and symbolic.equal(dim, source[axis]):
        return COPY
    return INFER


def _flatten_axis(source: Sequence[Dim] | None, result: Sequence[Dim]) -> int | None:
    """The axis at which a Flatten gives the same; unlike a -1 it can, beside a dimension of 0 too."""
    if source is None or len(result) != 2:
        return None
    for axis in range(len(source) + 1):
        rows, columns = symbolic.product(source[:axis]), symbolic.product(source[axis:])
        if symbolic.equal(rows, result[0]) and symbolic.equal(columns, result[1]):
            return axis
    return None


def _is_inferred_already(computed: ir.Value, axis: int) -> bool:
    """Whether the computed target has its -1 at the axis: where that cannot be inferred, the model never ran."""
    contents = facts.contents(computed)
    return contents is not None and contents[axis] == INFER

"""A target that is computed from the input's own shape can be written as zeros, numbers and one -1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt.graph import facts, scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, dims, inputs, is_constant, need, opset, shape_of
from ortopt.onnx_ir_internals import use_count
from ortopt.semantics import is_overridable
from ortopt.semantics.opset_changes import RESHAPE_ALLOWS_ZERO_FROM
from ortopt.transformer import Context, GraphTransformer
from ortopt.views.emission import INFER, flatten_axis, target_of


class ReshapeFusion(GraphTransformer):
    """``Reshape(x, Concat(Shape(x)…))`` → ``Reshape(x, constant)`` of 0s, numbers and at most one -1.

    A -1 cannot be inferred beside a dimension of 0, so the other dimensions must be positive: provably, or because the
    model could not run otherwise, as another Reshape that always runs infers a dimension beside the same ones. One with
    ``allowzero`` proves nothing: exporters write it, and ONNX Runtime does infer a dimension there.
    """

    after = ("dead_node_elimination", "shape_folding")
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Rewrite the Reshapes of a graph."""
        reshapes = context.edit.index.nodes(graph, "Reshape")
        roots = [node for node in context.cancellation.checked(reshapes) if _is_computed(node)]
        if not roots:
            return False
        outer = (graph, *map(scope.graph_of, scope.around(graph)))  # where a graph runs, all that stands in these does
        positive = frozenset[str]().union(*(_positive_symbols(at, context) for at in outer))
        changed = False
        for root, new in context.answered(roots, partial(_replacement, positive=positive)):
            changed |= context.substitute({root.outputs[0]: new.outputs[0]}, before=root, origin=(root,))
        return changed


def _is_computed(node: ir.Node) -> bool:
    """Whether a Reshape's target is computed: neither a constant nor an input with a default."""
    target = node.inputs[1] if len(node.inputs) == 2 else None
    return target is not None and not is_constant(target) and not is_overridable(target)


def _replacement(root: ir.Node, positive: frozenset[str]) -> ir.Node:
    """A node that reshapes without a computed target.

    Args:
        root: A Reshape with a computed target.
        positive: Symbols that are at least 1 wherever the model runs.

    Raises:
        Refusal: If there is none.
    """
    x, computed = inputs(root, 2)
    result = dims(root.outputs[0])
    numbers = tuple(dim for dim in result if isinstance(dim, int))
    if len(numbers) == len(result):
        need(0 not in numbers or opset(root) >= RESHAPE_ALLOWS_ZERO_FROM, "a dimension of 0 needs opset 14", root)
        return _reshape(x, numbers, allow_zero=0 in numbers)
    source = shape_of(x)
    target = target_of(source, result)
    open_axes = [axis for axis, element in enumerate(target) if element == INFER]
    if not open_axes:
        return _reshape(x, target)
    if len(open_axes) == 1:
        _check_for_copies(computed, result, source, positive)
        others = [dim for axis, dim in enumerate(result) if axis != open_axes[0]]
        fails = _literal(computed, open_axes[0]) == INFER and not _may_take_zero(root)
        if fails or all(_is_positive(dim, positive) for dim in others):
            return _reshape(x, target)
    axis = flatten_axis(source, result) if opset(root) >= 9 else None
    if axis is not None:
        _check_for_copies(computed, result, source, positive)
        return ir.node("Flatten", [x], attributes={"axis": axis})
    doubtful = sum(_may_copy(computed, result, axis) for axis in open_axes)
    need(doubtful != 1, "a dimension that is 0 would be copied", computed)
    need(len(open_axes) == 1, "several dimensions are neither numbers nor the input's own", computed)
    raise Refusal("a dimension beside the one to infer may be 0", computed)


def _check_for_copies(
    computed: ir.Value, result: Sequence[Dim], source: Sequence[Dim] | None, positive: frozenset[str]
) -> None:
    """Refuse a target that means something else once a dimension is 0.

    A computed 0 copies the input's dimension on the same axis. Beside a -1, or another dimension of 0, that gives a
    shape, and another one than the dimensions say; else there would be elements where the input has none, and the model
    fails.
    """
    literal = [_literal(computed, axis) for axis in range(len(result))]
    for axis, dim in enumerate(result):
        if literal[axis] == INFER or _is_copied(dim, source, axis) or _is_positive(dim, positive):
            continue
        others = [other for at, other in enumerate(result) if at != axis]
        fails = INFER not in literal and all(_is_positive(other, positive) for other in others)
        need(fails or _is_multiple(dim, source, axis), "a dimension that is 0 would be copied", computed)


def _may_copy(computed: ir.Value, result: Sequence[Dim], axis: int) -> bool:
    """Whether inference knows what is asked for, but not that it is the result's dimension."""
    asked = _literal(computed, axis)
    known = asked is not None and not isinstance(asked, int) and symbolic.at_least(asked, 0)
    return known and symbolic.is_invented(result[axis])


def _reshape(x: ir.Value, target: Sequence[int], *, allow_zero: bool = False) -> ir.Node:
    shape = constant(np.array(target, dtype=np.int64))
    return ir.node("Reshape", [x, shape], attributes={"allowzero": 1} if allow_zero else {})


def _is_copied(dim: Dim, source: Sequence[Dim] | None, axis: int) -> bool:
    return source is not None and axis < len(source) and symbolic.equal(dim, source[axis])


def _is_multiple(dim: Dim, source: Sequence[Dim] | None, axis: int) -> bool:
    """Whether a dimension is 0 only where the input's on the same axis is too."""
    if source is None or axis >= len(source):
        return False
    factor = symbolic.quotient_exact(dim, source[axis])
    return factor is not None and symbolic.at_least(factor, 1)


def _literal(target: ir.Value, axis: int) -> Dim | None:
    contents = facts.contents(target)
    return None if contents is None else contents[axis]


def _is_positive(dim: Dim, positive: frozenset[str]) -> bool:
    if symbolic.at_least(dim, 1):
        return True
    raised = {name: symbolic.add(symbolic.symbol(name), 1) for name in symbolic.symbols(dim) & positive}
    return bool(raised) and symbolic.at_least(symbolic.substitute(dim, raised), 1)


def _positive_symbols(graph: ir.Graph, context: Context) -> frozenset[str]:
    """The symbols beside which Reshapes of a graph infer a dimension: were one of them 0, the model would fail."""
    symbols: set[str] = set()
    for node in context.cancellation.checked(context.edit.index.nodes(graph, "Reshape")):
        if len(node.inputs) != 2 or node.inputs[1] is None or not _is_needed(node) or _may_take_zero(node):
            continue
        contents, result = facts.contents(node.inputs[1]), shape_of(node.outputs[0])
        source = None if node.inputs[0] is None else shape_of(node.inputs[0])
        if contents is None or INFER not in contents or result is None or len(result) != len(contents):
            continue
        for axis, dim in enumerate(result):
            if contents[axis] != INFER and _is_copied(dim, source, axis) and not isinstance(dim, int):
                names = symbolic.symbols(dim)
                if len(names) == 1 and dim.value in names:
                    symbols.update(names)
    return frozenset(symbols)


def _may_take_zero(node: ir.Node) -> bool:
    """Whether a Reshape has ``allowzero``: ONNX Runtime infers a dimension beside one of 0 then, and does not fail."""
    attribute = node.attributes.get("allowzero")
    return attribute is not None and (attribute.is_ref() or attribute.as_int() != 0)


def _is_needed(node: ir.Node) -> bool:
    return any(use_count(value) or value.is_graph_output() for value in node.outputs)

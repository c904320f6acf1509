"""Exporters join heads and batch, transpose three axes and split them: one Transpose of four axes does the same."""

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from ortopt.graph import symbolic
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    producer,
    same_dim,
    users,
)
from ortopt.options import TransformerLevel
from ortopt.patterns.axis_moves import is_slow
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.op_traits import RESHAPING


class Found(NamedTuple):
    """The last Reshape, the input of the first one, and the new order of its axes."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    order: tuple[int, ...]


class ReshapeTransposeFusion(RewriteRule[Found]):
    """``Reshape(Transpose(Reshape(x)))`` → ``Transpose(x)`` where the axes that were joined move together."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("reshape_merging", "transpose_merging")
    roots = tuple(sorted(RESHAPING))
    opsets = (5, NEWEST_OPSET)
    lookback = 4
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
        """Each axis of the transposed value joins neighbouring axes of x, and is split into them again."""
        (turned,) = inputs(root, 1)
        transpose = producer(turned, "Transpose")
        need(is_used_once(turned), "the transposed value is used elsewhere", turned)
        (joined,) = inputs(transpose, 1)
        first = producer(joined, *sorted(RESHAPING))
        need(is_used_once(joined), "what is transposed is used elsewhere", joined)
        (x,) = inputs(first, 1)
        need(not root.outputs[0].is_graph_output(), "what a file declares of its result is no proof", root)
        source, result = dims(x), dims(root.outputs[0])
        runs = _runs(source, dims(joined))
        empty: tuple[int, ...] = ()
        perm = attribute(transpose, "perm", empty) or tuple(reversed(range(len(runs))))
        need(sorted(perm) == list(range(len(runs))), "it is no permutation", transpose)
        order = tuple(axis for place in perm for axis in runs[place])
        apart = tuple(source[axis] for axis in order)
        need(symbolic.same_shape(apart, result), "the axes come apart into others", root)
        fast = is_slow(perm) or not (is_slow(order) or _is_slow_with_neighbour(x, order, root.outputs[0]))
        need(fast, "ONNX Runtime would move element by element, and moves blocks now", root)
        return Found((root,), x, order)

    def rewrite(self, found: Found) -> ir.Node | ir.Value:
        """Build the one Transpose."""
        if found.order == tuple(range(len(found.order))):
            return found.source
        return ir.node("Transpose", [found.source], {"perm": found.order})


def _is_slow_with_neighbour(x: ir.Value, order: tuple[int, ...], result: ir.Value) -> bool:
    """Whether a fast Transpose right before, or behind, and this one would be merged to a slow one."""
    empty: tuple[int, ...] = ()
    merged = []
    for node in (x.producer(), *users(result)):
        if node is not None and is_op(node, "Transpose"):
            other = attribute(node, "perm", empty)
            if len(other) == len(order) and not is_slow(other):
                outer, inner = (order, other) if node is x.producer() else (other, order)
                merged.append(tuple(inner[axis] for axis in outer))
    return any(map(is_slow, merged))


def _runs(source: Sequence[Dim], joined: Sequence[Dim]) -> list[tuple[int, ...]]:
    """The axes that each joined axis is made of."""
    runs = []
    start = 0
    for dim in joined:
        end = start
        while not same_dim(symbolic.product(source[start:end]), dim):
            if end == len(source):
                raise Refusal("an axis is no run of axes")
            end += 1
        runs.append(tuple(range(start, end)))
        start = end
    if runs and all(same_dim(dim, 1) for dim in source[start:]):
        runs[-1] += tuple(range(start, len(source)))
        start = len(source)
    need(start == len(source), "an axis is no run of axes")
    return runs

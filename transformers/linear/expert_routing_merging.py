"""Rows that each of several experts finds and gathers by itself are found and gathered once, and come back once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, need, rank
from ortopt.options import ONNX_RUNTIMES, Numerics, TransformerLevel
from ortopt.patterns.parallel_parts import ParallelParts, Parts
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.transformers.linear._expert_combination import Combination, expert_combination
from ortopt.transformers.linear._expert_search import Search, expert_search

END = np.iinfo(np.int64).max
"""An end behind every last element."""

ADDED = 5
"""How many nodes search for the rows of all experts and count them."""


class ExpertRoutingMerging(RewriteRule[Match]):
    """``Gather(x, NonZero(mask[e]))`` for each expert e → parts of ``Gather(x, NonZero(mask))``.

    The sum of ``ScatterElements(0, rows[e], y[e]·w[e])`` → ``ReduceSum(ScatterND(Concat(y)·w))``: where TopK has named
    the experts of each row, each result has a place of its own.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("NonZero",)
    opsets = (13, NEWEST_OPSET)  # the first with sizes of a Split, and axes of a ReduceSum, that are computed
    looks_downstream = True
    numerics = Numerics.REORDERED
    providers = (CPU,)
    targets = ONNX_RUNTIMES

    def match(self, root: ir.Node) -> Match:
        """The first expert's NonZero, with those of all others, and what is done alike with what they find."""
        search = expert_search(root)
        parts = ParallelParts(Parts(search.found, 1))
        try:
            combination = expert_combination(search.mask, search.axis, parts, search.found[0])
        except Refusal:
            combination = None
        nodes = [*search.nodes, *parts.nodes, *(() if combination is None else combination.nodes)]
        read = parts.read_elsewhere(nodes)
        need(bool(read), "nothing reads the rows", root)
        count = len(search.found)
        need(len(search.nodes) + len(parts.nodes) >= 2 * count + ADDED + len(read), "there is little to merge", root)
        replaced = [value for family in read for value in family.values]
        replaced += [] if combination is None else [combination.total]
        return Match(tuple(nodes), lambda: _merged(search, parts, read, combination), tuple(replaced))


def _merged(
    search: Search, done: ParallelParts, read: Sequence[Parts], combination: Combination | None
) -> dict[ir.Value, ir.Value]:
    """Build one search, the steps with all rows, and a Split of what the experts read."""
    places = ir.node("NonZero", [_by_expert(search)]).outputs[0]
    coordinates = ir.node("Slice", [places, constant([1]), constant([END]), constant([0])]).outputs[0]
    weights = None if combination is None else combination.weights
    wanted = [parts.values[0] for parts in read]
    wholes = done.replay(coordinates, wanted if weights is None else [*wanted, weights])
    sizes = _sizes(search)
    replaced: dict[ir.Value, ir.Value] = {}
    for values, axis in read:
        split = ir.node("Split", [wholes[values[0]], sizes], {"axis": axis}, num_outputs=len(values))
        replaced.update(zip(values, split.outputs, strict=True))
    if combination is not None:
        by = None if weights is None else wholes[weights]
        replaced[combination.total] = _combined(combination, coordinates, by)
    return replaced


def _by_expert(search: Search) -> ir.Value:
    """The mask with the axis of the experts in front, so that the rows of one are found after those of the other."""
    if search.axis == 0:
        return search.mask
    order = [search.axis, *(axis for axis in range(rank(search.mask)) if axis != search.axis)]
    return ir.node("Transpose", [search.mask], {"perm": order}).outputs[0]


def _sizes(search: Search) -> ir.Value:
    """How many rows each expert has."""
    marks = search.mask
    if not search.is_of_ones and marks.dtype != ir.DataType.BOOL:
        marks = ir.node("Cast", [marks], {"to": ir.DataType.BOOL}).outputs[0]
    if marks.dtype != ir.DataType.INT64 or marks is not search.mask:
        marks = ir.node("Cast", [marks], {"to": ir.DataType.INT64}).outputs[0]
    axes = constant([axis for axis in range(rank(search.mask)) if axis != search.axis])
    return ir.node("ReduceSum", [marks, axes], {"keepdims": 0}).outputs[0]


def _combined(found: Combination, coordinates: ir.Value, weights: ir.Value | None) -> ir.Value:
    """The results in the order of rows and slots, and the sum over the slots."""
    results = ir.node("Concat", list(found.results), {"axis": 0}).outputs[0]
    if weights is not None:
        results = ir.node("Mul", [results, weights]).outputs[0]
    slots = found.slots
    steps = [slots.per_row, 1] if slots.row_axis == 0 else [1, slots.per_row]
    turned = ir.node("Transpose", [coordinates], {"perm": [1, 0]}).outputs[0]
    scaled = ir.node("Mul", [turned, constant(steps)]).outputs[0]
    places = ir.node("ReduceSum", [scaled, constant([1])], {"keepdims": 1}).outputs[0]
    placed = ir.node("ScatterND", [results, places, results]).outputs[0]
    rows = slots.rows if isinstance(slots.rows, int) and slots.rows > 0 else -1
    by_row = ir.node("Reshape", [placed, constant([rows, slots.per_row, found.width])]).outputs[0]
    return ir.node("ReduceSum", [by_row, constant([1])], {"keepdims": 0}).outputs[0]

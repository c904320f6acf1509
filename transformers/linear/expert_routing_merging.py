"""Rows that each of several experts finds and gathers by itself are found and gathered once, and come back once.

Unrolled loops over experts are written so: a mask says for each expert which rows are its, each has its
own part of the mask and a NonZero of that, and its results are scattered to zeros, which are all added up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph import facts, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    Dim,
    Refusal,
    attribute,
    before,
    broadcasts_to,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    need,
    only_user,
    producer,
    rank,
    same_dim,
    scalar,
    small_array,
    splat,
    users,
)
from ortopt.options import ONNX_RUNTIMES, Numerics, TransformerLevel
from ortopt.patterns.parallel_parts import ParallelParts, Parts
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

MASK_RANK = 3


class Slots(Struct, frozen=True):
    """What a mask says in which each row belongs to as many experts as it has slots, to none twice.

    Attributes:
        row_axis: Which of the coordinates in a part of the mask is the row.
        rows: How many rows there are.
        per_row: How many slots a row has.
    """

    row_axis: int
    rows: Dim
    per_row: int


class Combination(Struct, frozen=True):
    """What brings the results of the experts back to their rows, and adds them up.

    Attributes:
        nodes: The nodes.
        results: What each expert gives for its rows.
        weights: What the results are multiplied by, for the first expert; None where they are not.
        total: The sum.
        slots: How rows and experts belong together.
        width: How many columns the results have.
    """

    nodes: tuple[ir.Node, ...]
    results: tuple[ir.Value, ...]
    weights: ir.Value | None
    total: ir.Value
    slots: Slots
    width: int


class _Scatter(Struct, frozen=True):
    """What one expert adds to the rows: the nodes, its result, what multiplies that, and the tensor with its rows."""

    nodes: tuple[ir.Node, ...]
    result: ir.Value
    weight: ir.Value | None
    y: ir.Value


def expert_combination(mask: ir.Value, axis: int, parts: ParallelParts, found: ir.Value) -> Combination:
    """What is done with the results of all experts.

    Args:
        mask: The mask in which experts find their rows.
        axis: Its axis of the experts.
        parts: What is done with the coordinates of these.
        found: The first expert's coordinates.

    Raises:
        Refusal: If they are not added up row by row.
    """
    slots = slots_of(mask, axis)
    rows = _scattered_rows(parts, found, slots.row_axis)
    scatters = [_scatter(value, slots, place, parts) for place, value in enumerate(rows)]
    total, sums = _total([scatter.y for scatter in scatters])
    width = dims(scatters[0].result)[1]
    if not isinstance(width, int) or width == 0:
        raise Refusal("the results have no fixed number of columns", scatters[0].result)
    weighted = [scatter.weight is not None for scatter in scatters]
    need(all(weighted) or not any(weighted), "some results are weighted", total)
    nodes = [node for scatter in scatters for node in scatter.nodes]
    results = tuple(scatter.result for scatter in scatters)
    return Combination((*nodes, *sums), results, scatters[0].weight, total, slots, width)


def slots_of(mask: ir.Value, axis: int) -> Slots:
    """How rows and experts belong together in a mask that a OneHot makes of what a TopK gives.

    Args:
        mask: The mask.
        axis: Its axis of the experts.

    Raises:
        Refusal: If it is no such mask.
    """
    one_hot, order = mask.producer(), tuple(range(MASK_RANK))
    if is_op(one_hot, "Transpose"):
        order = ops.Transpose(one_hot).order
        one_hot = inputs(one_hot, 1)[0].producer()
    if not is_op(one_hot, "OneHot"):
        raise Refusal("no OneHot makes the mask", mask)
    names, depth, values = inputs(one_hot, 3)
    need(small_array(values).tolist() == [0, 1], "it marks with other numbers than 0 and 1", values)
    top = producer(names, "TopK")
    need(names is top.outputs[1] and rank(names) == MASK_RANK - 1, "the mask is of no two axes of indices", names)
    need(ops.OneAxis(top).axis_of(2) == 1, "TopK goes along the rows", top)
    scores, (rows, count) = inputs(top, 1)[0], dims(names)
    experts = dims(scores)[1]
    fits = isinstance(experts, int) and experts <= scalar(depth) == dims(mask)[axis]
    need(fits and isinstance(count, int) and count > 0, "it is not known which experts there are", scores)
    assert isinstance(count, int)
    sources = [0, 1]
    sources.insert(ops.OneAxis(one_hot).axis_of(MASK_RANK), 2)  # the axes of the OneHot: rows, slots, experts
    axes = [sources[place] for place in order]
    need(axes.pop(axis) == 2, "the mask is searched along another axis than that of the experts", mask)
    return Slots(axes.index(0), rows, count)


def _scattered_rows(parts: ParallelParts, found: ir.Value, row_axis: int) -> tuple[ir.Value, ...]:
    """The columns of rows that are expanded to say where results are scattered."""
    for family in parts.read_elsewhere():
        first = family.values[0]
        if family.axis != 0 or len(dims(first)) != 2 or not any(is_op(user, "Expand") for user in users(first)):
            continue
        if _coordinate(first, found) == row_axis:
            return family.values
    raise Refusal("no results are scattered to the rows", found)


def _coordinate(value: ir.Value, found: ir.Value) -> int:
    """Which coordinate a value holds of what was found, alone and in the same order.

    Raises:
        Refusal: If it holds something else.
    """
    value = before(value, "Squeeze", "Unsqueeze", "Transpose")
    node = producer(value, "Split")
    place = list(node.outputs).index(value)
    whole = inputs(node, 1)[0]
    need(len(node.outputs) == MASK_RANK - 1, "it holds several coordinates", node)
    above = whole.producer()
    if is_op(above, "Transpose"):
        whole = inputs(above, 1)[0]
    need(whole is found, "it holds no coordinates", node)
    return place


def _scatter(rows: ir.Value, slots: Slots, place: int, parts: ParallelParts) -> _Scatter:
    """The way of one expert's result to its rows in a tensor of zeros.

    Raises:
        Refusal: If it is another.
    """
    expands = [node for node in users(rows) if is_op(node, "Expand")]
    need(len(expands) == 1, "results are scattered twice", rows)
    indices = expands[0].outputs[0]
    node = only_user(indices, "ScatterElements")
    zeros, listed, updates = inputs(node, 3)
    need(listed is indices and ops.OneAxis(node).axis_of(2) == 0, "it scatters no rows", node)
    need(attribute(node, "reduction", "none") == "none", "rows are combined", node)
    need(dtype(zeros) in FLOATS and not splat(zeros).any(), "it does not scatter to zeros", zeros)
    height, width = dims(zeros, 2)
    need(same_dim(height, slots.rows), "there are other rows than in the mask", zeros)
    nodes, result = _unexpanded(updates, slots.rows)
    of_shape = [user for user in users(updates) if is_op(user, "Shape")]
    need(same_dim(dims(result, 2)[0], dims(rows)[0]), "results are of other rows", result)
    need(same_dim(dims(result)[1], width), "results have other columns", result)
    weighting, result, weight = _unweighted(result, place, parts)
    return _Scatter((*weighting, *nodes, *of_shape, expands[0], node), result, weight, node.outputs[0])


def _unexpanded(updates: ir.Value, rows: Dim) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """What an Expand leaves as it is: it may ask for no row where there are none."""
    node = updates.producer()
    if not is_op(node, "Expand"):
        return (), updates
    value, target = inputs(node, 2)
    wanted, own = facts.contents(target), dims(value, 2)
    if wanted is None or len(wanted) != len(own):
        raise Refusal("it is not known how results are expanded", node)
    high, wide = wanted
    need(high == 1 or symbolic.is_one_or_none(high, rows), "results are expanded", node)
    need(wide == 1 or same_dim(wide, own[1]), "results are expanded", node)
    return (node,), value


def _unweighted(
    result: ir.Value, place: int, parts: ParallelParts
) -> tuple[tuple[ir.Node, ...], ir.Value, ir.Value | None]:
    """What a Mul multiplies by one number for each row that is gathered like the rows; the first expert's numbers."""
    node = result.producer()
    if not is_op(node, "Mul"):
        return (), result, None
    height, width = dims(result, 2)
    gathered = {family.values[place]: family for family in parts.read_elsewhere() if family.axis == 0}
    for y, weight in (inputs(node, 2), inputs(node, 2)[::-1]):
        own = dims(y)
        if weight in gathered and len(own) == 2 and same_dim(own[0], height) and same_dim(own[1], width):
            need(dims(weight)[1:] == (1,), "a row has several weights", weight)
            return (node,), y, gathered[weight].values[0]
    return (), result, None


def _total(terms: Sequence[ir.Value]) -> tuple[ir.Value, list[ir.Node]]:
    """The sum of some values, one added after the other, perhaps to zeros; and the Adds.

    Raises:
        Refusal: If something else is added, or one is not.
    """
    value, left, sums = terms[0], set(terms[1:]), list[ir.Node]()
    while left:
        node = only_user(value, "Add")
        other = next(operand for operand in inputs(node, 2) if operand is not value)
        if other not in left:
            need(not splat(other).any() and broadcasts_to(other, dims(value)), "other values are added", node)
        left.discard(other)
        value = node.outputs[0]
        sums.append(node)
    return value, sums


MASKS = (ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8)
"""The element types of masks of which ONNX Runtime has a NonZero, without floats."""


class Search(Struct, frozen=True):
    """The nodes that find the rows of each expert, and what they find.

    Attributes:
        mask: Not 0 where a row belongs to an expert.
        axis: The mask's axis of the experts.
        nodes: The Gathers, the Casts and the NonZeros.
        found: For each expert the coordinates of what is not 0.
        is_of_ones: Whether what is not 0 in the mask is known to be 1.
    """

    mask: ir.Value
    axis: int
    nodes: tuple[ir.Node, ...]
    found: tuple[ir.Value, ...]
    is_of_ones: bool


def expert_search(root: ir.Node) -> Search:
    """What finds the rows of all experts.

    Args:
        root: The NonZero of the first expert.

    Raises:
        Refusal: If it is none, or others are not found alike.
    """
    first = _selection(root)
    mask = inputs(first, 2)[0]
    need(dtype(mask) in MASKS, "the mask is of floats", mask)
    axis = ops.Gather(first).axis_of(rank(mask))
    count = dims(mask)[axis]
    gathers = [node for node in users(mask) if is_op(node, "Gather") and node.inputs[0] is mask]
    if not isinstance(count, int) or len(gathers) != count or count < 2:
        raise Refusal("not each part of the mask is searched once", mask)
    places = {node: _index(node, axis) for node in gathers}
    gathers.sort(key=places.__getitem__)
    need([places[node] for node in gathers] == list(range(count)), "not each part of the mask is searched once", mask)
    need(gathers[0] is first, "it searches for another than the first expert", root)
    chains = [_chain(node) for node in gathers]
    need(all(node.graph is root.graph for chain in chains for node in chain), "a subgraph reads the mask", mask)
    nodes = tuple(node for chain in chains for node in chain)
    found = tuple(chain[-1].outputs[0] for chain in chains)
    return Search(mask, axis, nodes, found, _is_of_ones(mask))


def _selection(root: ir.Node) -> ir.Node:
    """The Gather whose result a NonZero searches."""
    node = inputs(root, 1)[0].producer()
    if is_op(node, "Cast"):
        node = inputs(node, 1)[0].producer()
    if not is_op(node, "Gather"):
        raise Refusal("it searches no part of a mask", root)
    return node


def _is_of_ones(mask: ir.Value) -> bool:
    """Whether a OneHot writes the mask in zeros and ones."""
    node = mask.producer()
    if is_op(node, "Transpose"):
        node = inputs(node, 1)[0].producer()
    if not is_op(node, "OneHot"):
        return False
    values = node.inputs[2]
    return is_constant(values) and small_array(values).tolist() == [0, 1]


def _index(node: ir.Node, axis: int) -> int:
    """Which part of an axis of the mask a Gather takes."""
    mask, listed = inputs(node, 2)
    takes_part = rank(listed) == 0 and ops.Gather(node).axis_of(rank(mask)) == axis
    need(takes_part, "it takes no part of the axis of the experts", node)
    size = dims(mask)[axis]
    index = int(scalar(listed))
    return index % size if isinstance(size, int) and size else index


def _chain(gather: ir.Node) -> tuple[ir.Node, ...]:
    """A Gather, perhaps a Cast to booleans, and the NonZero."""
    user = only_user(gather.outputs[0], "Cast", "NonZero")
    if is_op(user, "NonZero"):
        return gather, user
    need(attribute(user, "to", 0) == ir.DataType.BOOL, "the Cast makes no booleans", user)
    return gather, user, only_user(user.outputs[0], "NonZero")


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

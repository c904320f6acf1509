"""What moves elements one by one, or data twice, where ONNX Runtime has a faster way for the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_float32,
    need_known,
    producer,
    same_dim,
    tensor_of,
    users,
)
from ortopt.graph.symbolic import is_known
from ortopt.options import MEASURED_TARGETS
from ortopt.patterns.permutations import (
    Exchange,
    Order,
    exchanges,
    hides_exchange,
    moves_elements,
    moves_one_axis,
    reduced,
)
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule
from ortopt.views.emission import chain
from ortopt.views.index_map import reordered, reshaped, whole
from ortopt.views.reading import through


class SplitTransposeReordering(CpuRule[Match]):
    """``Squeeze(Split(Transpose(x)))`` → the same along another axis, where the Transpose then moves a single axis.

    A Transpose that moves one axis is fast, one that moves two and ends with another axis goes element by element.

    Attention over channels (XCiT, EdgeNeXt), and of pooled tokens (MViT), brings queries, keys and values to the front
    and the tokens to the end, in one Transpose of five axes, and splits them there. Where they are split is free.

    And ``Reshape(Split(Transpose(x)))``.
    """

    roots = ("Split",)
    opsets = (13, NEWEST_OPSET)
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Parts of size 1 that lose their axis or get another shape, and a Transpose of the last axis and one more."""
        value = inputs(root, 1)[0]
        transpose = producer(value, "Transpose", alone="what is split is used elsewhere")
        x = inputs(transpose, 1)[0]
        perm = ops.Transpose(transpose).order
        split = ops.Split(root).axis
        need(moves_elements(dims(x), perm), "the Transpose is fast", transpose)
        behind = tuple(_behind(part, split) for part in root.outputs)
        rest = (*perm[:split], *perm[split + 1 :])
        shaped = all(is_op(node, "Reshape") for node in behind)
        alike = [rest, _units_in_place(rest, dims(x))] if shaped else [rest]
        orders = ((*rest[:place], perm[split], *rest[place:]) for rest in alike for place in range(len(perm)))
        order = need_known(
            next(filter(moves_one_axis, orders), None), "no Transpose of a single axis does the same", transpose
        )
        replaced = tuple(node.outputs[0] for node in behind)
        nodes = (transpose, root, *behind)
        return Match(nodes, lambda: _of_other_axis(nodes, order, order.index(perm[split])), replaced)


def _of_other_axis(nodes: Sequence[ir.Node], order: Sequence[int], place: int) -> dict[ir.Value, ir.Value]:
    """Build the Transpose, the Split, and what is behind it.

    Args:
        nodes: These nodes, as they are now.
        order: The order of the axes that moves a single one.
        place: The axis in that order that is split.
    """
    transpose, old, *behind = nodes
    turned = ir.node("Transpose", [transpose.inputs[0]], {"perm": order}).outputs[0]
    attributes = ops.changed(old.attributes.values(), axis=place)
    split = ir.Node("", "Split", [turned, *old.inputs[1:]], attributes, num_outputs=len(behind))
    parts = zip(behind, split.outputs, strict=True)
    return {node.outputs[0]: _again(node, part, constant([place])).outputs[0] for node, part in parts}


def _again(node: ir.Node, part: ir.Value, axes: ir.Value) -> ir.Node:
    """A Squeeze or a Reshape of a part whose axis is elsewhere."""
    if node.op_type == "Squeeze":
        return ir.node("Squeeze", [part, axes])
    return ops.copied(node, [part, *node.inputs[1:]])


def _units_in_place(rest: Sequence[int], sizes: Sequence[Dim]) -> tuple[int, ...]:
    """The same order of the elements, the axes of size 1 in front of one that they came before."""
    result = [place for place in rest if not same_dim(sizes[place], 1)]
    for unit in sorted(set(rest) - set(result)):
        later = min((place for place in result if place > unit), default=None)
        result.insert(len(result) if later is None else result.index(later), unit)
    return tuple(result)


def _behind(part: ir.Value, place: int) -> ir.Node:
    """The one node that uses a part: it drops its axis and no other, or gives it another shape."""
    need(is_used_once(part), "a part is used several times, or not at all", part)
    (node,) = users(part)
    if is_op(node, "Reshape"):
        need(node.inputs[0] is part, "a part is a shape", node)
        target = contents(inputs(node, 2)[1])
        numbers = target is not None and all(isinstance(size, int) and size != 0 for size in target)
        need(numbers, "the shape that a part gets is not known, or takes sizes of it", node)
        need(same_dim(dims(part)[place], 1), "a part is larger", part)
        return node
    need(is_op(node, "Squeeze"), "a part does not lose its axis alone", node)
    axes = ops.Squeeze(node).axes
    need(len(axes) == 1, "a part does not lose its axis alone", node)
    need(axes[0] == place, "a part loses another axis", node)
    return node


EXCHANGES = Form("", "Transpose", "of two exchanges of axes")
MAX_EXCHANGES = 2
SINGLE, PIECES, LEAST = 500, 2500, 150
"""Picoseconds that an exchange takes for an element: of single elements; of pieces, divided by their size; at least."""

LAST = (1,)
"""The axis behind all others. ONNX Runtime merges transpositions when it loads a model, but none of such views."""

ORDER = (0, 2, 1, 3, 4)

Shape = tuple[Dim, ...]


class TransposeDecomposition(CpuRule[Match]):
    """``Transpose(x)`` that moves several axes → ``Reshape(Transpose(…Reshape(Transpose(Reshape(x)))))``.

    ONNX Runtime's Transpose has fast paths for one axis that moves; where more move, it copies element by element.

    That takes 4 nanoseconds an element, and an exchange of two neighbouring groups of axes takes a tenth of it: two of
    them are faster than one Transpose. Axes of size 1 among those that move hide an exchange, and Reshape takes them
    away. Exports have such transpositions where patches become images, and where Einsum and unfold are spelled out.

    Where the last axis moves, and the exchanges move no small pieces. Of few elements, it is the number of nodes that
    counts.
    """

    targets = MEASURED_TARGETS
    after = ("transpose_optimizer", "window_gather_decomposition")
    roots = ("Transpose",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input
    weighs = (EXCHANGES,)
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """A transposition of single elements that is one or two exchanges of groups of axes."""
        (x,) = inputs(root, 1)
        need_float32(x, MEASURED)
        shape = tuple(dims(x))
        order = ops.Transpose(root).order
        need(moves_elements(shape, order), "one axis moves, or pieces of several elements", root)
        split = any(is_op(user, "Split") for user in users(root.outputs[0]))
        need(not split, "what is split may move fewer axes", root)  # split_transpose_reordering
        _check_told(shape, root)
        result = tuple(shape[axis] for axis in order)
        inner, wanted = reduced(shape, order)
        ways = [tuple(_views(inner, way)) for way in exchanges(wanted, MAX_EXCHANGES)]
        lasting = [way for way in ways if _lasts(root, shape, way, result)]
        need(bool(lasting), "it is more than two exchanges, or one Transpose would be made of them again", root)
        best = min(lasting, key=_cost)
        check_faster(root, EXCHANGES, elements=shape, picoseconds=math.ceil(_cost(best)))
        return Match((root,), lambda: _exchanged(x, best, result))


def _exchanged(value: ir.Value, views: Sequence[Shape], result: Shape) -> ir.Node:
    """Build the exchanges, each of a view of what comes before it, and the result's dimensions."""
    for view in views:
        looked_at = ir.node("Reshape", [value, constant(_sizes(view))])
        value = ir.node("Transpose", looked_at.outputs, {"perm": ORDER}).outputs[0]
    return ir.node("Reshape", [value, constant(_sizes(result))])


def _check_told(shape: Sequence[Dim], root: ir.Node) -> None:
    """Refuse a shape that Reshape cannot be told."""
    fixed = [dim for dim in shape if isinstance(dim, int)]
    need(len(fixed) >= len(shape) - 1 and all(map(is_known, shape)), "more than one dimension is not fixed", root)
    need(0 not in fixed, "there are no elements", root)


def _sizes(shape: Sequence[Dim]) -> list[int]:
    """A shape as Reshape takes it."""
    return [dim if isinstance(dim, int) else -1 for dim in shape]


def _views(shape: Shape, way: Sequence[Exchange]) -> Iterator[Shape]:
    """What each exchange looks at: the second and third axis change places, and what stays together is one."""
    now: Order = tuple(range(len(shape)))
    for exchange in way:
        start, middle, end = exchange
        cuts = (now[:start], now[start:middle], now[middle:end], now[end:])
        yield (*(symbolic.product(shape[axis] for axis in cut) for cut in cuts), *LAST)
        now = exchange.of(now)


def _cost(views: Sequence[Shape]) -> float:
    """Picoseconds an element."""
    cost = 0.0
    for view in views:
        piece = view[3] if isinstance(view[3], int) else 2
        cost += SINGLE if piece <= 1 else max(LEAST, PIECES / piece)
    return cost


def _lasts(root: ir.Node, shape: Shape, views: Sequence[Shape], result: Shape) -> bool:
    """Whether no pass makes one Transpose of neighbours again: what is between them joins axes and splits others."""
    turned = [tuple(view[axis] for axis in ORDER) for view in views]
    if any(_joins(*pair) or _joins(*reversed(pair)) for pair in zip(turned, views[1:], strict=False)):
        return False
    return not any(_is_one(root, *way) for way in zip((shape, *turned), views, (*views[1:], result), strict=False))


def _joins(source: Shape, view: Shape) -> bool:
    """Whether all that a Reshape does is to join axes: then a Transpose can go through it."""
    ends = [1, *accumulate(source, symbolic.mul)]
    return all(any(same_dim(end, other) for other in ends) for end in accumulate(view, symbolic.mul))


def _is_one(root: ir.Node, source: Shape, view: Shape, behind: Shape) -> bool:
    """Whether the exchange of a view, seen as another shape, is a single move: reshape_transpose_fusion."""
    exchanged = reordered(reshaped(whole(root.outputs[0], source), view), ORDER)
    try:
        one = chain(reshaped(exchanged, behind), root)
    except Refusal:
        return False
    return one.nodes <= 1 and (one.moves.perm is None or not hides_exchange(one.moves.moved, one.moves.perm))


AROUND_RESHAPE: Final = Form("", "Transpose", "of two around a Reshape")
MAX_RANK: Final = 6


class TransposeReshapeMerging(CpuRule[Match]):
    """``Transpose(Reshape(Transpose(x)))`` → ``Reshape(Transpose(Reshape(x)))`` where the last axis stays.

    Transposes with a Reshape between them move the data twice, where once would do.

    Attention to images moves the heads in front, makes an image of each, and moves its rows or columns in front for a
    product with what is known of each (SAM, ViTDet).

    Elements behind one another stay so: short pieces have fast paths where one axis moves.
    """

    targets = MEASURED_TARGETS
    after = ("transpose_optimizer", "transpose_merging", "reshape_transpose_fusion")
    roots = ("Transpose",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input
    lookback = 3
    looks_downstream = True
    weighs = (AROUND_RESHAPE,)

    def match(self, root: ir.Node) -> Match:
        """Nothing else reads what is between, so that the first Transpose goes away."""
        (middle,) = inputs(root, 1)
        reshape = producer(middle, *sorted(RESHAPING))
        all_move = all(is_op(user, "Transpose") for user in users(middle)) and not middle.is_graph_output()
        need(all_move, "what is between is used elsewhere", middle)
        (turned,) = inputs(reshape, 1)
        first = producer(turned, "Transpose", alone="what is between is used elsewhere")
        (x,) = inputs(first, 1)
        once = chain(through(x, first, reshape, root), root)
        need(once.nodes <= 3, "the sizes would be computed", root)
        need(len(once.moves.moved) <= MAX_RANK, "there would be more axes", root)
        if once.transposes:
            check_faster(root, AROUND_RESHAPE, columns=once.moves.together)
        return Match((root,), once.build)


COLUMNS_AS_ROWS = Form("", "Gather", "of columns as rows")


class ColumnGatherConversion(CpuRule[Match]):
    """``Gather(table, i)`` along the columns → ``Transpose(Gather(tableᵀ, i))``, of a constant table.

    A Gather along the last axis copies single elements, one along the first whole rows.

    Relative positions choose from a table with a row for each head (LayoutLM): a number of each row for each pair of
    positions. As a row of numbers for each pair they are copied at once, and a Transpose of one axis is fast.
    """

    targets = MEASURED_TARGETS
    roots = ("Gather",)
    after = ("transpose_optimizer",)
    weighs = (COLUMNS_AS_ROWS,)

    def match(self, root: ir.Node) -> Match:
        """A constant matrix, and indices that are computed."""
        table, indices = inputs(root, 2)
        tensor_of(table)
        need(len(dims(table)) == 2 and ops.Gather(root).axis == 1, "it takes no columns of a matrix", root)
        need(not is_constant(indices), "the indices are constants", indices)
        need_float32(table, MEASURED)
        rows, places = dims(table)[0], dims(indices)
        check_faster(root, COLUMNS_AS_ROWS, rows=rows, elements=(rows, *places))
        return Match((root,), lambda: _gathered_rows(table, indices, len(places)))


def _gathered_rows(table: ir.Value, indices: ir.Value, axes: int) -> ir.Node:
    """Build the Gather of rows, and the Transpose that brings their elements to the front."""
    rows = constant(np.ascontiguousarray(array_of(table).T))
    chosen = ir.node("Gather", [rows, indices], {"axis": 0})
    return ir.node("Transpose", chosen.outputs, {"perm": (axes, *range(axes))})

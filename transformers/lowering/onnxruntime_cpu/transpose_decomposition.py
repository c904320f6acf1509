"""ONNX Runtime's Transpose has fast paths for one axis that moves; where more move, it copies element by element.

That takes 4 nanoseconds an element, and an exchange of two neighbouring groups of axes takes a tenth of it: two of them
are faster than one Transpose. Axes of size 1 among those that move hide an exchange, and Reshape takes them away.
Exports have such transpositions where patches become images, and where Einsum and unfold are spelled out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, dims, inputs, is_op, need, need_float32, same_dim, users
from ortopt.graph.symbolic import is_known
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.permutations import Exchange, Order, exchanges, hides_exchange, moves_elements, reduced
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.views.emission import chain
from ortopt.views.index_map import reordered, reshaped, whole

FORM = Form("", "Transpose", "of two exchanges of axes")
MAX_EXCHANGES = 2
SINGLE, PIECES, LEAST = 500, 2500, 150
"""Picoseconds that an exchange takes for an element: of single elements; of pieces, divided by their size; at least."""

LAST = (1,)
"""The axis behind all others. ONNX Runtime merges transpositions when it loads a model, but none of such views."""

ORDER = (0, 2, 1, 3, 4)

Shape = tuple[Dim, ...]


class Found(Struct, frozen=True):
    """The Transpose, the view of each exchange, and the dimensions of the result."""

    nodes: tuple[ir.Node, ...]
    views: tuple[Shape, ...]
    result: Shape


class TransposeDecomposition(RewriteRule[Found]):
    """``Transpose(x)`` that moves several axes → ``Reshape(Transpose(…Reshape(Transpose(Reshape(x)))))``.

    Where the last axis moves, and the exchanges move no small pieces. Of few elements, it is the number of nodes that
    counts.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("transpose_optimizer", "window_gather_decomposition")
    roots = ("Transpose",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (FORM,)
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
        """A transposition of single elements that is one or two exchanges of groups of axes."""
        (x,) = inputs(root, 1)
        need_float32(x, "the gain was measured")
        shape = tuple(dims(x))
        order = ops.Transpose(root).order
        need(moves_elements(shape, order), "one axis moves, or pieces of several elements", root)
        split = any(is_op(user, "Split") for user in users(root.outputs[0]))
        need(not split, "what is split may move fewer axes", root)  # split_transpose_reordering
        elements = _elements(shape, root)
        result = tuple(shape[axis] for axis in order)
        inner, wanted = reduced(shape, order)
        ways = [tuple(_views(inner, way)) for way in exchanges(wanted, MAX_EXCHANGES)]
        lasting = [way for way in ways if _lasts(root, shape, way, result)]
        need(bool(lasting), "it is more than two exchanges, or one Transpose would be made of them again", root)
        best = min(lasting, key=_cost)
        check_faster(root, FORM, elements=elements, picoseconds=math.ceil(_cost(best)))
        return Found((root,), best, result)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the exchanges, each of a view of what comes before it."""
        (value,) = inputs(found.nodes[0], 1)
        for view in found.views:
            looked_at = ir.node("Reshape", [value, constant(_sizes(view))])
            value = ir.node("Transpose", looked_at.outputs, {"perm": ORDER}).outputs[0]
        return ir.node("Reshape", [value, constant(_sizes(found.result))])


def _elements(shape: Sequence[Dim], root: ir.Node) -> int:
    """How many elements there are at least, of a shape that Reshape can be told."""
    fixed = [dim for dim in shape if isinstance(dim, int)]
    need(len(fixed) >= len(shape) - 1 and all(map(is_known, shape)), "more than one dimension is not fixed", root)
    need(0 not in fixed, "there are no elements", root)
    return math.prod(fixed)


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

"""Of several moves in a row, one does the same, or none: each of them copies."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.graph import scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.integer_ranges import LARGEST, is_endless
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    dims,
    inputs,
    is_constant,
    need,
    opset,
    producer,
    same_dim,
    shape_of,
)
from ortopt.ops.moves import taken
from ortopt.patterns.permutations import hides_exchange
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.semantics.opset_changes import RESHAPE_ALLOWS_ZERO_FROM
from ortopt.views.emission import INFER, LAST, Taken, chain, flatten_axis, ones_beside, target_of
from ortopt.views.reading import dims_after, through

SHAPE_IS_AN_INPUT_FROM = 5
"""Before, a Reshape's shape was an attribute."""

FLATTENS_ALL_TYPES = 9
ALONG_AXES = ("Squeeze", "Unsqueeze")


class TransposeMerging(RewriteRule[Match]):
    """``Transpose(Transpose(x))`` → one ``Transpose``, or ``x``."""

    roots = ("Transpose",)

    def match(self, root: ir.Node) -> Match:
        """Two known permutations; the first Transpose may have other users, and stays for them."""
        (middle,) = inputs(root, 1)
        first = producer(middle, "Transpose")
        (x,) = inputs(first, 1)
        return Match((root,), chain(through(x, first, root, rank=len(ops.Transpose(first).order)), root).build)


class ReshapeTransposeFusion(RewriteRule[Match]):
    """``Reshape(Transpose(Reshape(x)))`` → ``Transpose(x)`` where the axes that were joined move together."""

    after = ("reshape_merging", "transpose_merging")
    roots = tuple(sorted(RESHAPING))
    opsets = (SHAPE_IS_AN_INPUT_FROM, NEWEST_OPSET)
    lookback = 3

    def match(self, root: ir.Node) -> Match:
        """Three moves, of which nothing else reads what is between, that one does."""
        (turned,) = inputs(root, 1)
        transpose = producer(turned, "Transpose", alone="the transposed value is used elsewhere")
        (joined,) = inputs(transpose, 1)
        first = producer(joined, *sorted(RESHAPING), alone="what is transposed is used elsewhere")
        (x,) = inputs(first, 1)
        fewer = chain(through(x, first, transpose, root), root)
        need(fewer.nodes <= 1, "no single move does the same", root)
        perm = fewer.moves.perm
        fast = perm is None or not hides_exchange(fewer.moves.moved, perm)
        need(fast, "axes of size 1 would be in the way of its fast path", root)  # transpose_decomposition
        return Match((root,), fewer.build)


class SliceMerging(RewriteRule[Match]):
    """``Slice(Slice(x))`` → one ``Slice``."""

    roots = ("Slice",)

    def match(self, root: ir.Node) -> Match:
        """Bounds that are numbers; on a common axis, positive steps."""
        (middle,) = inputs(root, 1)
        first = producer(middle, "Slice", alone="the first part is used elsewhere")
        (x,) = inputs(first, 1)
        shape = dims(x)
        inner = {cut.axis: cut for cut in ops.Slice(first).bounds}
        outer = {cut.axis: cut for cut in ops.Slice(root).bounds}
        together = [
            _composed(inner[axis], outer[axis], shape[axis], root)
            if axis in inner and axis in outer
            else (axis, *_numbers(inner.get(axis) or outer[axis], root))
            for axis in sorted(inner.keys() | outer.keys())
        ]
        return Match((first, root), lambda: ops.slice_node(x, together, opset(root)))


def _numbers(cut: ops.Cut, root: ir.Node) -> tuple[int, int, int]:
    _, start, end, step = cut
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)):
        raise Refusal("a bound is computed", root)
    return start, end, step


def _composed(inner: ops.Cut, outer: ops.Cut, size: Dim, root: ir.Node) -> Taken:
    """The bounds of two Slices along the same axis together."""
    (a, b, p), (c, d, q) = _numbers(inner, root), _numbers(outer, root)
    need(p > 0 and q > 0, "it steps backwards", root)
    if isinstance(size, int):
        first = taken(size, a, b, p)
        second = taken(len(first), c, d, q)
        left = first[second.start : second.stop : second.step]
        if len(left) < 2:  # whatever the steps are: they may be beyond 64 bits together
            return (inner.axis, left[0], left[0] + 1, 1) if left else (inner.axis, 0, 0, 1)
        return inner.axis, left.start, left.stop, left.step
    need(min(a, b, c, d) >= 0 and p == q == 1, "the dimension is not fixed, and a bound counts from its end", root)
    need(max(a, c) < LARGEST, "the dimension is not fixed, and a start is beyond any", root)
    ends = [end for end, limit in ((b, b), (a + d, d)) if not is_endless(limit)]
    return inner.axis, a + c, min(ends, default=LAST), 1


class ReshapeMerging(RewriteRule[Match]):
    """``Reshape``, ``Flatten``, ``Squeeze``, ``Unsqueeze`` of one another → one of them, or ``x``.

    A ``Transpose`` that only moves dimensions of 1 is as good as a Reshape before another.
    """

    after = ("reshape_fusion",)
    roots = tuple(sorted(RESHAPING))
    opsets = (SHAPE_IS_AN_INPUT_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
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
            return Match((root,), lambda: x)
        if root.op_type == first.op_type and root.op_type in ALONG_AXES:
            merged = _merged(first, root, source)
            if merged is not None:
                return Match((root,), lambda: ops.node_along(root.op_type, x, merged, opset(root)))
        mixed = {root.op_type, first.op_type} == set(ALONG_AXES)
        computed = root.op_type == "Reshape" and not is_constant(root.inputs[1])
        if source is not None and result is not None and (mixed or computed):
            renamed = _by_ones(source, result)
            if renamed is not None:
                op, ones = renamed
                return Match((root,), lambda: ops.node_along(op, x, ones, opset(root)))
        if root.op_type == "Reshape" and _reads_alike(root, source, between):
            return _reshaping(root, x, inputs(root, 2)[1], allows_zero=attribute(root, "allowzero", 0) == 1)
        if source is None or result is None:
            raise Refusal("the shapes are not known", root)
        return _by_shape(root, x, source, result)


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


def _by_shape(root: ir.Node, x: ir.Value, source: Sequence[Dim], result: Sequence[Dim]) -> Match:
    """A Reshape with a constant target, or a Flatten."""
    numbers = tuple(dim for dim in result if isinstance(dim, int))
    if len(numbers) == len(result):
        need(0 not in numbers or opset(root) >= RESHAPE_ALLOWS_ZERO_FROM, "a dimension of 0 needs opset 14", root)
        return _reshaping(root, x, numbers, allows_zero=0 in numbers)
    target = target_of(source, result)
    free = [axis for axis, element in enumerate(target) if element == INFER]
    if not free:
        return _reshaping(root, x, target)
    at = flatten_axis(source, result) if opset(root) >= FLATTENS_ALL_TYPES else None
    others = [dim for axis, dim in enumerate(result) if axis != free[0]]
    infers = len(free) == 1 and (all(symbolic.at_least(dim, 1) for dim in others) or _infers(root, free[0]))
    # A runtime may lose a dimension of 1 in a Flatten (OpenVINO 2026.4).
    for_any = infers and scope.of_node(root).options.target.keeps_to_onnx
    if at is not None and not for_any:
        return Match((root,), lambda: ir.node("Flatten", [x], {"axis": at}))
    need(len(free) == 1, "several dimensions are neither numbers nor the input's own", root)
    need(infers, "a dimension beside the one to infer may be 0", root)
    return _reshaping(root, x, target)


def _reshaping(root: ir.Node, x: ir.Value, target: Sequence[int] | ir.Value, *, allows_zero: bool = False) -> Match:
    settings = {"allowzero": 1} if allows_zero else {}

    def build() -> ir.Node:
        shape = target if isinstance(target, ir.Value) else constant(target)
        return ir.node("Reshape", [x, shape], settings)

    return Match((root,), build)


def _infers(root: ir.Node, axis: int) -> bool:
    """Whether the last op infers the dimension at an axis itself, and so cannot run beside a 0 either."""
    target = contents(inputs(root, 2)[1]) if root.op_type == "Reshape" else None
    return target is not None and same_dim(target[axis], INFER)

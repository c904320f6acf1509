"""Transposes with a Reshape between them move the data twice, where once would do.

Attention to images moves the heads in front, makes an image of each, and moves its rows or columns in front for a
product with what is known of each (SAM, ViTDet).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, Refusal, dims, inputs, is_op, is_used_once, need, producer, same_dim, users
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM: Final = Form("", "Transpose", "of two around a Reshape")
MAX_RANK: Final = 6

Pieces: TypeAlias = list[list[Dim]]


class Found(Struct, frozen=True):
    """The second Transpose, what the first one takes, and how both are one.

    Attributes:
        nodes: The second Transpose.
        x: The input of the first.
        view: The axes of x, cut where the Reshape cuts.
        order: The new order of these.
        result: The dimensions of the result.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    view: tuple[Dim, ...]
    order: tuple[int, ...]
    result: tuple[Dim, ...]


class TransposeReshapeMerging(RewriteRule[Found]):
    """``Transpose(Reshape(Transpose(x)))`` → ``Reshape(Transpose(Reshape(x)))`` where the last axis stays.

    Elements behind one another stay so: short pieces have fast paths where one axis moves.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("transpose_optimizer", "transpose_merging", "reshape_transpose_fusion")
    roots = ("Transpose",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input
    lookback = 3
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Found:
        """Nothing else reads what is between, so that the first Transpose goes away."""
        (middle,) = inputs(root, 1)
        reshape = producer(middle, "Reshape")
        all_move = all(is_op(user, "Transpose") for user in users(middle)) and not middle.is_graph_output()
        need(all_move, "what is between is used elsewhere", middle)
        turned = inputs(reshape, 2)[0]
        first = producer(turned, "Transpose")
        need(is_used_once(turned), "what is between is used elsewhere", turned)
        (x,) = inputs(first, 1)
        pieces, joined = _common(dims(turned), dims(middle))
        before, after = ops.Transpose(first).order, ops.Transpose(root).order
        view = [(place, index) for place in _inverse(before) for index in range(len(pieces[place]))]
        flat = [(place, index) for place, cut in enumerate(pieces) for index in range(len(cut))]
        runs = iter(flat)
        moved = [[next(runs) for _ in run] for run in joined]
        order = tuple(view.index(piece) for axis in after for piece in moved[axis])
        sizes = tuple(pieces[place][index] for place, index in view)
        need(len(sizes) <= MAX_RANK, "there would be more axes", root)
        together = sizes[-1] if order[-1] == len(order) - 1 else 1
        if not isinstance(together, int):
            raise Refusal("it is not known how many elements stay together", root)
        check_faster(root, FORM, columns=together)
        result = tuple(dims(middle)[axis] for axis in after)
        for shape in (sizes, result):
            fixed = [dim for dim in shape if isinstance(dim, int)]
            need(len(fixed) >= len(shape) - 1 and 0 not in fixed, "more than one dimension is not fixed", root)
        return Found((root,), x, sizes, order, result)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the one Transpose, between views."""
        cut = ir.node("Reshape", [found.x, constant(_sizes(found.view))])
        turned = ir.node("Transpose", [cut.outputs[0]], {"perm": found.order})
        return ir.node("Reshape", [turned.outputs[0], constant(_sizes(found.result))])


def _common(source: Sequence[Dim], target: Sequence[Dim]) -> tuple[Pieces, Pieces]:
    """The pieces of each axis before and after a Reshape: the coarsest that both are made of.

    Raises:
        Refusal: If there are none.
    """
    pieces: Pieces = [[] for _ in source]
    joined: Pieces = [[] for _ in target]
    before, after, left, wanted = 0, 0, list(source), list(target)
    while before < len(source) and after < len(target):
        a, b = left[before], wanted[after]
        piece, rest_a, rest_b = _cut(a, b, left[before:], wanted[after:])
        pieces[before].append(piece)
        joined[after].append(piece)
        left[before], wanted[after] = rest_a, rest_b
        before += same_dim(rest_a, 1)
        after += same_dim(rest_b, 1)
    need(before == len(source) and after == len(target), "the Reshape leaves axes of size 1")
    return pieces, joined


def _cut(a: Dim, b: Dim, source: Sequence[Dim], target: Sequence[Dim]) -> tuple[Dim, Dim, Dim]:
    """The next piece, and what is left of both axes."""
    if same_dim(a, b):
        return a, 1, 1
    if isinstance(a, int) and isinstance(b, int):
        piece = min(a, b)
        need(piece > 0 and max(a, b) % piece == 0, "the Reshape cuts across axes")
        return piece, a // piece, b // piece
    for count in range(2, len(source) + 1):
        if same_dim(symbolic.product(source[:count]), b):
            return a, 1, symbolic.product(source[1:count])
    for count in range(2, len(target) + 1):
        if same_dim(symbolic.product(target[:count]), a):
            return b, symbolic.product(target[1:count]), 1
    raise Refusal("the Reshape cuts across axes")


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _sizes(shape: Sequence[Dim]) -> list[int]:
    """A shape as Reshape takes it."""
    return [dim if isinstance(dim, int) else -1 for dim in shape]

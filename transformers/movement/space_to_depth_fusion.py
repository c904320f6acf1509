"""YOLO's "focus" layer takes every other row and column in four ways and joins them: that is a SpaceToDepth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_known,
    optional,
    tensor_of,
    users,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.views.index_map import every, identity, same
from ortopt.views.reading import maps

RANK = 4
CHANNELS, HEIGHT, WIDTH = 1, 2, 3
MAX_MOVES = 4
"""How many moves take a block, at most."""


class SpaceToDepthFusion(RewriteRule[Match]):
    """``Concat`` of ``x[:, :, i::b, j::b]`` for all i, j → ``SpaceToDepth(x)``.

    SpaceToDepth joins the blocks row by row; YOLO joins them column by column. A Conv behind it then gets its weights
    in the new order (ONNX Runtime puts a Gather between them); without one, a Gather restores the order.

    An image of open size that has an odd number of rows or columns fails as before, as blocks of several sizes cannot
    be joined. Of a single row ONNX Runtime joins them nevertheless, as it skips what is empty, and leaves channels of
    the result to whatever is in memory: there the new node fails.
    """

    numerics = Numerics.REORDERED
    keeps_elementwise = True
    after = ("slice_merging",)
    roots = ("Concat",)
    opsets = (4, NEWEST_OPSET)
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Each offset once, from one value of rank 4."""
        need(ops.Concat(root).axis_of(len(dims(root.outputs[0], 4))) == CHANNELS, "it does not join channels", root)
        source, size, order = _blocks(root)
        channels = dims(source, 4)[CHANNELS]
        in_order = order == tuple(range(size * size))
        convolution = None
        if not in_order:
            need(isinstance(channels, int), "the number of channels is not fixed", source)
            try:
                convolution = _convolution_below(root)
            except Refusal:
                reason = "a block is used elsewhere, and the blocks are in another order"
                need(all(map(is_used_once, inputs(root, len(root.inputs)))), reason, root)

        def build() -> dict[ir.Value, ir.Value]:
            blocks = ir.node("SpaceToDepth", [source], {"blocksize": size}).outputs[0]
            if convolution is not None:
                return {convolution.outputs[0]: _of_blocks(convolution, blocks, order)}
            if not in_order:
                assert isinstance(channels, int)
                indices = np.array(order)[:, None] * channels + np.arange(channels)
                blocks = ir.node("Gather", [blocks, constant(indices.reshape(-1))], {"axis": CHANNELS}).outputs[0]
            return {root.outputs[0]: blocks}

        last = root if convolution is None else convolution
        return Match((root,) if last is root else (root, last), build, (last.outputs[0],))


def _of_blocks(convolution: ir.Node, blocks: ir.Value, order: tuple[int, ...]) -> ir.Value:
    """Build a Conv with its weights in the order of SpaceToDepth's blocks."""
    weight = tensor_of(convolution.inputs[1])
    content = array_of(convolution.inputs[1])
    outputs, inputs = content.shape[:2]
    by_block = content.reshape(outputs, len(order), inputs // len(order), *content.shape[2:])
    moved = by_block[:, np.argsort(order)].reshape(content.shape)
    bias = optional(convolution, 2)
    operands = [blocks, constant(np.ascontiguousarray(moved), weight.dtype), *([] if bias is None else [bias])]
    return ops.copied(convolution, operands).outputs[0]


def _blocks(root: ir.Node) -> tuple[ir.Value, int, tuple[int, ...]]:
    """The image whose blocks a Concat joins, their size, and for each operand its place in a block, row by row."""
    operands = inputs(root, len(root.inputs))
    size = math.isqrt(len(operands))
    need(size > 1 and size * size == len(operands), "its operands are no blocks", root)
    source, offsets = _offsets(operands, size)
    order = tuple(row * size + column for row, column in offsets)
    need(sorted(order) == list(range(size * size)), "a block is missing", root)
    divides = all(not isinstance(dim, int) or dim % size == 0 for dim in dims(source, RANK)[HEIGHT:])
    need(divides, "the blocks do not fill the image", source)
    return source, size, order


def _offsets(operands: Sequence[ir.Value], size: int) -> tuple[ir.Value, list[tuple[int, int]]]:
    """The value that all operands are blocks of, and for each block its first row and its first column."""
    known = [{found.source: found for found in maps(operand, MAX_MOVES)} for operand in operands]
    source = need_known(
        next((value for value in known[0] if all(value in one for one in known)), None),
        "the blocks come from several values",
        operands[0],
    )
    offsets = []
    for operand, one in zip(operands, known, strict=True):
        found = one[source]
        need(len(found.starts) == RANK, "a block starts elsewhere", operand)
        row, column = found.starts[HEIGHT:]
        if not (isinstance(row, int) and isinstance(column, int) and 0 <= row < size and 0 <= column < size):
            raise Refusal("a block starts elsewhere", operand)
        block = every(every(identity(source), HEIGHT, row, size), WIDTH, column, size)
        need(same(found, block), "it takes no block", operand)
        offsets.append((row, column))
    return source, offsets


def _convolution_below(root: ir.Node) -> ir.Node:
    """The Conv that alone reads the blocks, and whose weights can be put into another order."""
    result = root.outputs[0]
    reason = "the blocks are in another order than SpaceToDepth's, and no Conv alone reads them"
    need(is_used_once(result), reason, root)
    convolution: ir.Node = users(result)[0]
    need(is_op(convolution, "Conv") and convolution.graph is root.graph, reason, convolution)
    need(convolution.inputs[0] is result, reason, convolution)
    need(ops.Conv(convolution).group == 1, "the Conv has groups", convolution)
    weight = inputs(convolution, 2)[1]
    need(is_constant(weight) and use_count(weight) == 1, "the Conv's weights are no constant of its own", weight)
    return convolution

"""YOLO's "focus" layer takes every other row and column in four ways and joins them: that is a SpaceToDepth."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.edit import constant
from ortopt.graph.integer_ranges import is_endless
from ortopt.graph.match import (
    Refusal,
    array_of,
    attribute,
    axis,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    optional,
    producer,
    same_dim,
    tensor_of,
    users,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.slice import cuts
from ortopt.rule import NEWEST_OPSET, RewriteRule

CHANNELS, HEIGHT, WIDTH = 1, 2, 3


class Found(Struct, frozen=True):
    """The Concat, perhaps a Conv that reads it in another order, and the blocks: in which order they are joined."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    size: int
    order: tuple[int, ...]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result of the last node, which may stand below the root."""
        return (self.nodes[-1].outputs[0],)


class SpaceToDepthFusion(RewriteRule[Found]):
    """``Concat`` of ``x[:, :, i::b, j::b]`` for all i, j → ``SpaceToDepth(x)``.

    SpaceToDepth joins the blocks row by row; YOLO joins them column by column. A Conv behind it then gets its weights
    in the new order (ONNX Runtime puts a Gather between them); without one, a Gather restores the order.
    """

    levels = (TransformerLevel.LEVEL1,)
    numerics = Numerics.REORDERED
    keeps_elementwise = True
    after = ("slice_merging",)
    roots = ("Concat",)
    opsets = (4, NEWEST_OPSET)
    lookback = 2
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
        """Each offset once, from one value of rank 4."""
        operands = inputs(root, len(root.inputs))
        size = math.isqrt(len(operands))
        need(size > 1 and size * size == len(operands), "its operands are no blocks", root)
        need(axis(root, len(dims(root.outputs[0], 4)), 0) == CHANNELS, "it does not join channels", root)
        offsets = [_offsets(operand, size) for operand in operands]
        source = offsets[0][0]
        need(all(value is source for value, *_ in offsets), "the blocks come from several values", root)
        order = tuple(row * size + column for _, row, column in offsets)
        need(sorted(order) == list(range(size * size)), "a block is missing", root)
        _, channels, height, width = dims(source, 4)
        divides = all(not isinstance(dim, int) or dim % size == 0 for dim in (height, width))
        need(divides, "the blocks do not fill the image", source)
        if order == tuple(range(size * size)):
            return Found((root,), source, size, order)
        need(isinstance(channels, int), "the number of channels is not fixed", source)
        try:
            return Found((root, _convolution_below(root)), source, size, order)
        except Refusal:
            need(
                all(map(is_used_once, operands)), "a block is used elsewhere, and the blocks are in another order", root
            )
            return Found((root,), source, size, order)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the SpaceToDepth, and the Conv that reads it."""
        blocks = ir.node("SpaceToDepth", [found.source], {"blocksize": found.size}).outputs[0]
        if len(found.nodes) == 1:
            if found.order != tuple(sorted(found.order)):
                channels = dims(found.source, 4)[CHANNELS]
                assert isinstance(channels, int)
                indices = np.array(found.order)[:, None] * channels + np.arange(channels)
                blocks = ir.node("Gather", [blocks, constant(indices.reshape(-1))], {"axis": CHANNELS}).outputs[0]
            return {found.nodes[0].outputs[0]: blocks}
        convolution = found.nodes[1]
        weight = tensor_of(convolution.inputs[1])
        content = array_of(convolution.inputs[1])
        outputs, inputs = content.shape[:2]
        by_block = content.reshape(outputs, len(found.order), inputs // len(found.order), -1)
        moved = by_block[:, np.argsort(found.order)].reshape(content.shape)
        bias = optional(convolution, 2)
        operands = [blocks, constant(np.ascontiguousarray(moved), weight.dtype), *([] if bias is None else [bias])]
        new = ir.Node("", "Conv", operands, list(convolution.attributes.values()))
        return {convolution.outputs[0]: new.outputs[0]}


def _offsets(operand: ir.Value, size: int) -> tuple[ir.Value, int, int]:
    """The value that an operand is a block of, the block's first row and its first column."""
    starts: dict[int, int] = {}
    at = operand
    while len(starts) < 2:
        node = producer(at, "Slice")
        (above,) = inputs(node, 1)
        shape = dims(above, 4)
        for cut in cuts(node):
            dim, end = shape[cut.axis], cut.end
            beyond = is_endless(end) or (isinstance(end, int) and isinstance(dim, int) and end >= dim)
            need(beyond or same_dim(end, dim), "a block ends before the image", node)
            need(cut.axis in (HEIGHT, WIDTH) and cut.axis not in starts, "it takes no block", node)
            need(same_dim(cut.step, size), "the steps are not those of blocks", node)
            if not isinstance(cut.start, int) or not 0 <= cut.start < size:
                raise Refusal("a block starts elsewhere", node)
            starts[cut.axis] = cut.start
        at = above
    return at, starts[HEIGHT], starts[WIDTH]


def _convolution_below(root: ir.Node) -> ir.Node:
    """The Conv that alone reads the blocks, and whose weights can be put into another order."""
    result = root.outputs[0]
    reason = "the blocks are in another order than SpaceToDepth's, and no Conv alone reads them"
    need(is_used_once(result), reason, root)
    convolution: ir.Node = users(result)[0]
    need(is_op(convolution, "Conv") and convolution.graph is root.graph, reason, convolution)
    need(convolution.inputs[0] is result, reason, convolution)
    need(attribute(convolution, "group", 1) == 1, "the Conv has groups", convolution)
    weight = inputs(convolution, 2)[1]
    need(is_constant(weight) and use_count(weight) == 1, "the Conv's weights are no constant of its own", weight)
    return convolution

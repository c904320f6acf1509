"""Every n-th row and column of an image, in all the ways that there are, joined along an axis."""

from __future__ import annotations

import math

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.integer_ranges import is_endless
from ortopt.graph.match import Refusal, dims, inputs, need, producer, same_dim

RANK = 4


class StridedBlocks(Struct, frozen=True):
    """What is joined.

    Attributes:
        source: The image.
        size: The step, which is the height and the width of a block.
        order: For each operand of the Concat its place in a block, row by row.
    """

    source: ir.Value
    size: int
    order: tuple[int, ...]


def strided_blocks(root: ir.Node, rows: int, columns: int) -> StridedBlocks:
    """Each offset once, from one value of rank 4.

    Args:
        root: A Concat.
        rows: The axis of the image's rows.
        columns: The axis of its columns.

    Raises:
        Refusal: If it joins anything else.
    """
    operands = inputs(root, len(root.inputs))
    size = math.isqrt(len(operands))
    need(size > 1 and size * size == len(operands), "its operands are no blocks", root)
    offsets = [_offsets(operand, size, (rows, columns)) for operand in operands]
    source = offsets[0][0]
    need(all(value is source for value, *_ in offsets), "the blocks come from several values", root)
    order = tuple(row * size + column for _, row, column in offsets)
    need(sorted(order) == list(range(size * size)), "a block is missing", root)
    shape = dims(source, RANK)
    divides = all(not isinstance(dim, int) or dim % size == 0 for dim in (shape[rows], shape[columns]))
    need(divides, "the blocks do not fill the image", source)
    return StridedBlocks(source, size, order)


def _offsets(operand: ir.Value, size: int, axes: tuple[int, int]) -> tuple[ir.Value, int, int]:
    """The value that an operand is a block of, the block's first row and its first column."""
    starts: dict[int, int] = {}
    at = operand
    while len(starts) < len(axes):
        node = producer(at, "Slice")
        (above,) = inputs(node, 1)
        shape = dims(above, RANK)
        for cut in ops.Slice(node).cuts:
            dim, end = shape[cut.axis], cut.end
            beyond = is_endless(end) or (isinstance(end, int) and isinstance(dim, int) and end >= dim)
            need(beyond or same_dim(end, dim), "a block ends before the image", node)
            need(cut.axis in axes and cut.axis not in starts, "it takes no block", node)
            need(same_dim(cut.step, size), "the steps are not those of blocks", node)
            if not isinstance(cut.start, int) or not 0 <= cut.start < size:
                raise Refusal("a block starts elsewhere", node)
            starts[cut.axis] = cut.start
        at = above
    return at, starts[axes[0]], starts[axes[1]]


__all__ = ["StridedBlocks", "strided_blocks"]

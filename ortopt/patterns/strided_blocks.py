"""Every n-th row and column of an image, in all the ways that there are, joined along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import Refusal, dims, inputs, need
from ortopt.views.index_map import every, identity, same
from ortopt.views.reading import maps

RANK = 4
MAX_MOVES = 4
"""How many moves take a block, at most."""


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
    source, offsets = _offsets(operands, size, (rows, columns))
    order = tuple(row * size + column for row, column in offsets)
    need(sorted(order) == list(range(size * size)), "a block is missing", root)
    shape = dims(source, RANK)
    divides = all(not isinstance(dim, int) or dim % size == 0 for dim in (shape[rows], shape[columns]))
    need(divides, "the blocks do not fill the image", source)
    return StridedBlocks(source, size, order)


def _offsets(operands: Sequence[ir.Value], size: int, axes: tuple[int, int]) -> tuple[ir.Value, list[tuple[int, int]]]:
    """The value that all operands are blocks of, and for each block its first row and its first column."""
    known = [{found.source: found for found in maps(operand, MAX_MOVES)} for operand in operands]
    source = next((value for value in known[0] if all(value in one for one in known)), None)
    if source is None:
        raise Refusal("the blocks come from several values", operands[0])
    offsets = []
    for operand, one in zip(operands, known, strict=True):
        found, block = one[source], identity(source)
        starts = [found.starts[axis] for axis in axes]
        first = tuple(start for start in starts if isinstance(start, int) and 0 <= start < size)
        need(len(first) == len(axes) and len(found.starts) == RANK, "a block starts elsewhere", operand)
        for axis, start in zip(axes, first, strict=True):
            block = every(block, axis, start, size)
        need(same(found, block), "it takes no block", operand)
        offsets.append((first[0], first[1]))
    return source, offsets


__all__ = ["StridedBlocks", "strided_blocks"]

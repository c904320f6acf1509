"""A window that slides along a signal of any length is taken by a few Slices, each a long run of numbers.

``unfold`` with a length that only the call knows (span-based attention, convolutions with computed kernels) is exported
as a Gather whose indices are a range of positions plus a column of offsets within the window: it copies number by
number.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Refusal,
    dims,
    dtype,
    inputs,
    is_scalar,
    need,
    need_float32,
    operand_constant,
    opset,
    producer,
    scalar,
    small_array,
    static_dims,
)
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM = Form("", "Slice", "for each offset")


class Found(Struct, frozen=True):
    """A window that slides.

    Attributes:
        nodes: The Gather.
        x: What it is taken from.
        place: Along which axis.
        offsets: Where the numbers of the window are.
        size: One more than the last place of the window may be, a scalar.
        step: How far it moves at a time.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    place: int
    offsets: tuple[int, ...]
    size: ir.Value
    step: int


class SlidingGatherDecomposition(RewriteRule[Found]):
    """``Gather(x, range + offsets)`` → ``Concat(Slice(x), …)`` with a Slice for each offset, as ConvBERT needs."""

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Gather",)
    opsets = (11, NEWEST_OPSET)  # the first with Range
    lookback = 3
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Found:
        """A range that counts from 0, and a column of offsets; single numbers are taken."""
        x, indices = inputs(root, 2)
        need_float32(x, "the gain was measured")
        place = ops.Gather(root).axis
        alone = all(isinstance(size, int) and size == 1 for size in dims(x)[place + 1 :])
        need(alone, "it takes rows, which are copied as they are", root)
        column, row = operand_constant(producer(indices, "Add"))
        rows, width = static_dims(column, 2)
        need(width == 1 and rows > 1, "the offsets are no column", column)
        check_faster(root, FORM, parts=rows)
        offsets = tuple(map(int, small_array(column).reshape(-1)))
        need(min(offsets) >= 0, "an offset is negative", column)
        size, step = _range(row)
        return Found((root,), x, place, offsets, size, step)

    def rewrite(self, found: Found) -> ir.Value:
        """Take the numbers at each offset, and put them side by side."""
        place = found.place
        x = ops.unsqueezed(found.x, [place], opset(found.nodes[0]))
        size = ir.node("Reshape", [found.size, constant([1])]).outputs[0]
        runs = [_run(x, place + 1, offset, size, found.step) for offset in found.offsets]
        return ir.node("Concat", runs, {"axis": place}).outputs[0]


def _range(row: ir.Value) -> tuple[ir.Value, int]:
    """Where a range that is one row of a matrix ends, and its step.

    Raises:
        Refusal: If it is none, or does not count upwards from 0.
    """
    spread = producer(row, "Unsqueeze", "Reshape")
    shape = dims(row, 2)
    span = producer(spread.inputs[0], "Range")
    need(isinstance(shape[0], int) and shape[0] == 1, "the range is no row", row)
    first, size, delta = inputs(span, 3)
    need(is_scalar(first, 0), "the range does not count from 0", span)
    step = int(scalar(delta))
    need(step > 0, "the range does not count upwards", span)
    need(dtype(size) == ir.DataType.INT64, "the positions are no int64", size)
    known = contents(size)
    if known is None or not symbolic.at_least(known[0], 0):
        raise Refusal("the range may end below 0, from where a Slice counts from the back", size)
    return size, step


def _run(x: ir.Value, place: int, offset: int, size: ir.Value, step: int) -> ir.Value:
    """The numbers at one offset."""
    end = ir.node("Add", [size, constant([offset])]).outputs[0] if offset else size
    bounds = [constant([offset]), end, constant([place]), constant([step])]
    return ir.node("Slice", [x, *bounds]).outputs[0]

"""A bias by relative position is a function of one number, not of two: each of its diagonals is computed once.

T5, MPNet and WavLM put the differences of all pairs of positions through a dozen ops, to look each up in a table. There
are n² differences, and 2·n - 1 different ones. The matrix with equal diagonals is then made from one row by copies: n
rows of `length` elements one behind the other, cut into rows of `length` - 1, shift by one from row to row.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, dims, inputs, need, producer, rank
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.relative_positions import MOST_NODES, Differences, differences, joined, op
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM: Final = Form("", "Gather", "for each difference of positions")

SPARE: Final = 16
"""Elements behind the last one that counts, so that it is not among those that kernels compute one by one: nearly all
elements of the matrix are not, either."""

HEADS_FIRST: Final = (2, 0, 1)


class Found(Struct, frozen=True):
    """A table's rows by relative position.

    Attributes:
        nodes: The nodes that go away: differences, what is computed from them, the Gather and the Transpose.
        table: The table, one row for each bucket.
        heads: The length of its rows.
        buckets: What is computed of the differences: rows of the table.
    """

    nodes: tuple[ir.Node, ...]
    table: ir.Value
    heads: int
    buckets: Differences


class RelativePositionConversion(RewriteRule[Found]):
    """``Transpose(Gather(table, f(j - i)))`` → the same of the vector of differences, copied to equal diagonals.

    For the bias by relative position that T5, MPNet and WavLM compute from ``f``, a dozen ops on integers.

    It is exact as a transposition is: each difference goes through the ops that it went through. Where its Log lies at
    the edge of a bucket, ONNX Runtime itself gives one bucket or the other by the element's place: the last elements
    of each thread's share are computed one by one, the others many at a time, and the two may differ in the last bit.
    In the models named above they do so for no distance that is looked up.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Transpose",)
    opsets = (14, NEWEST_OPSET)  # before, no Reshape gave an empty image
    lookback = MOST_NODES
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Found:
        """A table that is looked up by what pointwise ops compute of the differences of one range's elements."""
        need(ops.Transpose(root).order == HEADS_FIRST, "the rows do not become columns", root)
        gather = producer(root.inputs[0], "Gather")
        table, buckets = inputs(gather, 2)
        need(rank(table) == 2 and ops.Gather(gather).axis == 0, "it is no table of rows", gather)
        heads = dims(table)[1]
        if not isinstance(heads, int) or heads == 0:
            raise Refusal("the length of a row is not known", table)
        of = differences(buckets, root)
        check_faster(root, FORM, nodes=len(of.nodes))
        return Found((*of.nodes, gather, root), table, heads, of)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the row of all differences, what is computed of it, and the matrix."""
        columns = ir.node("Transpose", [found.table], {"perm": [1, 0]}).outputs[0]
        rows = ir.node("Gather", [columns, found.buckets.row(SPARE)], {"axis": 1}).outputs[0]
        return _diagonals(rows, found.heads, found.buckets.count, found.buckets.last)


def _diagonals(rows: ir.Value, heads: int, count: ir.Value, last: ir.Value) -> ir.Value:
    """The matrices whose diagonals are the elements of rows.

    Args:
        rows: One row of 2·count - 1 + SPARE elements for each matrix.
        heads: How many matrices there are.
        count: Rows of a matrix, and columns.
        last: One less.
    """
    end = op("Add", last, count)
    shorter = op("Add", end, constant((SPARE - 1,)))
    copies = op("Tile", rows, joined(constant((1,)), count))
    flat = op("Slice", copies, constant((0,)), op("Mul", count, shorter), constant((1,)))
    target = joined(constant((heads,)), count, shorter)
    shifted = ir.node("Reshape", [flat, target], {"allowzero": 1}).outputs[0]
    return op("Slice", shifted, last, end, constant((2,)))

"""Products with rows of a small table: all rows are multiplied once, and the products are looked up instead of rows.

Keys by relative position are such rows: one for each pair of positions, of which a few dozen differ.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    dims,
    inputs,
    is_constant,
    need,
    need_float,
    producer,
    same_dim,
    static_dims,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.einsum import equation_of
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

MOST_ROWS = 128
"""Larger tables have rows that a short sequence never reads."""


class GatherEinsumReordering(RewriteRule[Match]):
    """``Einsum("bhld,lrd->bhlr", x, Gather(table, i))`` → ``GatherElements(x · tableᵀ, i)``.

    For tables of up to 128 rows: it gains the more, the longer the sequence.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Einsum",)
    opsets = (12, NEWEST_OPSET)
    lookback = 2
    providers = (CPU,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A product over the last axis of what is multiplied, and of rows that are chosen for pairs of positions."""
        x, chosen = inputs(root, 2)
        need(len(root.inputs) == 2, "it is no product of two", root)
        need_float(x)
        (own, pairs), result = equation_of(root)
        need(len(pairs) == 3 and len(own) >= 2, "it is no product with rows for pairs of positions", root)
        length, other, summed = pairs
        as_rows = (
            own[-2:] == (length, summed) and result == (*own[:-1], other) and len({*own, other}) == len(result) + 1
        )
        need(as_rows, "it is no product with rows for pairs of positions", root)
        gather = producer(chosen, "Gather")
        table, rows = inputs(gather, 2)
        need(is_constant(table) and ops.Gather(gather).axis == 0, "the rows are of no constant table", gather)
        count, size = static_dims(table)
        need(0 < count <= MOST_ROWS, "the table has rows that may not be read", table)
        need(same_dim(dims(x)[-1], size), "the rows are repeated", x)
        need(same_dim(dims(x)[-2], dims(rows, 2)[0]), "the lengths are not known to be equal", x)
        return Match((root,), lambda: _looked_up(x, table, rows))


def _looked_up(x: ir.Value, table: ir.Value, rows: ir.Value) -> ir.Node:
    """The products with all rows of the table, and those that are asked for."""
    columns = ir.node("Transpose", [table], {"perm": (1, 0)}).outputs[0]
    products = ir.node("MatMul", [x, columns]).outputs[0]
    last = len(dims(x)) - 1
    sizes = [ir.node("Shape", [rows]).outputs[0]]
    if last > 1:
        ahead = ir.node("Shape", [x]).outputs[0]
        sizes.insert(0, ir.node("Gather", [ahead, constant(list(range(last - 1)))]).outputs[0])
    shape = ir.node("Concat", sizes, {"axis": 0}).outputs[0] if last > 1 else sizes[0]
    indices = ir.node("Expand", [rows, shape]).outputs[0]
    return ir.node("GatherElements", [products, indices], {"axis": last})

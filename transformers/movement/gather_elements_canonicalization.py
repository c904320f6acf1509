"""Whole rows that are selected one number at a time can be selected as rows."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import dims, dtype, inputs, need, producer, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

GATHERS_IN_BATCHES_FROM = 12


class Found(Struct, frozen=True):
    """The GatherElements, what it selects from, its indices before they were repeated, and how many axes go along."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    indices: ir.Value
    batch: int


class GatherElementsCanonicalization(RewriteRule[Found]):
    """``GatherElements(x, Expand(i))`` → ``GatherND(x, i)``, where i says the same for all numbers of a row.

    ONNX Runtime's CPU then copies whole rows, and the repeated indices are not needed.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("GatherElements",)
    opsets = (GATHERS_IN_BATCHES_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Found:
        """Indices of shape [batch, rows, 1] that are repeated along the last axis, for all columns."""
        x, repeated = inputs(root, 2)
        (indices, _) = inputs(producer(repeated, "Expand", "Tile"), 2)
        shape = dims(x)
        place = ops.OneAxis(root).axis
        need(place == len(shape) - 2, "it selects along another axis than the last but one", root)
        need(dtype(indices) == ir.DataType.INT64, "GatherND takes indices of 64 bits", indices)
        before, after = dims(indices, len(shape)), dims(repeated, len(shape))
        need(same_dim(before[-1], 1), "the indices differ within a row", indices)
        need(not same_dim(after[-1], 1), "a row has one number", repeated)
        need(same_dim(after[-1], shape[-1]), "a part of each row is selected", repeated)
        batch = all(map(same_dim, before[:-2], shape[:-2])) and all(map(same_dim, before[:-1], after[:-1]))
        need(batch, "the indices are repeated along other axes too", repeated)
        return Found((root,), x, indices, place)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the selection of rows."""
        return ir.node("GatherND", [found.source, found.indices], {"batch_dims": found.batch})

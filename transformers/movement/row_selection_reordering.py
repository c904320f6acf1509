"""Of a block that treats each row by itself, one row is enough where only one is read.

Classifiers look at one position of what the last layer of a transformer gives (a class token, the first word): the
positions beside it need no feed-forward network, no normalization and no projection there.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, inputs, integers, is_constant, is_op, need, rank, users
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.rows import rows_of
from ortopt.rule import RewriteRule


class Found(Struct, frozen=True):
    """What is selected, by each of several equal Gathers.

    Attributes:
        nodes: The node that treats rows one by one, and the Gathers.
        rows: The operands that have rows.
        axis: The axis of which one place is selected.
        at: The place.
    """

    nodes: tuple[ir.Node, ...]
    rows: tuple[ir.Value, ...]
    axis: int
    at: int

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """What the Gathers give."""
        return tuple(node.outputs[0] for node in self.nodes[1:])


class RowSelectionReordering(RewriteRule[Found]):
    """``Gather(Gelu(MatMul(x, W)), 0)`` → ``Gelu(MatMul(Gather(x, 0), W))``, for what treats each row by itself.

    The place is one number, and no other place is read. For a last layer this goes on up to its attention.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("residual_sum_conversion",)
    roots = ("Gather",)
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """One place of an axis before the last, of a value that nothing else reads but to select the same place."""
        value, listed = inputs(root, 2)
        need(is_constant(listed) and rank(listed) == 0, "it selects no single place", root)
        node = value.producer()
        if node is None or node.graph is not root.graph:
            raise Refusal("nothing in this graph computes the rows", value)
        of = rank(value)
        place = ops.Gather(root).axis
        need(place < of - 1, "it selects no row", root)
        (index,) = integers(listed)
        need(not value.is_graph_output(), "all rows are asked for", value)
        alike = users(value)
        need(all(_is_same(each, value, place, index) for each in alike), "other rows are read", value)
        outputs = sum(each.outputs[0].is_graph_output() for each in alike)
        need(outputs < 2, "two outputs are the same row", value)
        rows = rows_of(node)
        return Found((node, *alike), rows, place, index)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the node for one row."""
        old = found.nodes[0]
        selected = {
            value: ir.node("Gather", [value, constant(np.array(found.at, np.int64))], {"axis": found.axis}).outputs[0]
            for value in dict.fromkeys(found.rows)
        }
        operands = [selected.get(value, value) if value is not None else None for value in old.inputs]
        new = ops.copied(old, operands, **({"axis": -1} if ops.OneAxis(old).is_stated else {}))
        return dict.fromkeys(found.replaced, new.outputs[0])


def _is_same(node: ir.Node, value: ir.Value, place: int, index: int) -> bool:
    """Whether a node selects the same row of a value."""
    if not is_op(node, "Gather") or node.inputs[0] is not value or node.inputs[1] is None:
        return False
    listed = node.inputs[1]
    alone = is_constant(listed) and rank(listed) == 0 and listed is not value
    return alone and integers(listed) == (index,) and ops.Gather(node).axis == place

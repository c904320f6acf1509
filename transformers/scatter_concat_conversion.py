"""Assignments to all parts of a tensor, as exporters write ``x[..., :n] = a; x[..., n:] = b``, put these together."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import Dim, dims, is_op, need
from ortopt.options import TransformerLevel
from ortopt.patterns.assignment import Assignment, assignment
from ortopt.rule import RewriteRule

MAX_ASSIGNMENTS = 16
"""So many are put together; more are those of a loop that a tracer has unrolled."""


class Found(Struct, frozen=True):
    """The last assignment, what is assigned, in the order of its places, and along which axis."""

    nodes: tuple[ir.Node, ...]
    parts: tuple[ir.Value, ...]
    axis: int


class ScatterConcatConversion(RewriteRule[Found]):
    """``ScatterND(ScatterND(x, first places, a), the other places, b)`` → ``Concat(a, b)``.

    Nothing is left of what they are written into, and Concat lets Transposes and the heads of attention through.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding", "expand_fusion", "scatter_elimination", "shape_sharing")
    roots = ("ScatterND",)
    lookback = MAX_ASSIGNMENTS

    def match(self, root: ir.Node) -> Found:
        """Assignments along one axis that leave no place as it was, none of which is written over in part."""
        last = assignment(root)
        found = [last]
        node = root
        whole = dims(root.outputs[0])[last.axis]
        while len(found) < MAX_ASSIGNMENTS and not _cover(found, whole):
            assert node.inputs[0] is not None
            before = node.inputs[0].producer()
            need(before is not None and is_op(before, "ScatterND"), "places stay as they are", node)
            assert before is not None
            node = before
            found.append(assignment(node))
            need(found[-1].axis == last.axis, "another axis is assigned to before", node)
        need(_cover(found, whole), "there are many assignments", root)
        found.sort(key=lambda one: one.start)
        return Found((root,), tuple(one.updates for one in found), last.axis)

    def rewrite(self, found: Found) -> ir.Node:
        """Put the parts one behind the other."""
        return ir.node("Concat", found.parts, {"axis": found.axis})


def _cover(found: list[Assignment], whole: Dim) -> bool:
    """Whether assignments are to all places of an axis.

    Raises:
        Refusal: If two of them are to the same place.
    """
    end = 0
    for one in sorted(found, key=lambda one: one.start):
        need(one.start >= end, "what is written is written over", one.updates)
        if one.start > end:
            return False
        end = one.stop
    return isinstance(whole, int) and end == whole

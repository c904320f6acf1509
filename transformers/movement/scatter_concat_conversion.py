"""Assignments to all parts of a tensor, as exporters write ``x[..., :n] = a; x[..., n:] = b``, put these together."""

from __future__ import annotations

from bisect import bisect_left, insort

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import Refusal, dims, is_op, need, users
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.transformers.movement._assignment import Assignment, assignment

MAX_ASSIGNMENTS = 4096
"""So many are put together: the steps of a loop that a tracer has unrolled, each of which assigns its result."""

_LOOKBACK = 16
"""So many, where they are followed by one that is not understood, perhaps not yet: each of them is tried."""


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
    lookback = _LOOKBACK
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
        """Assignments along one axis that leave no place as it was, none of which is written over in part."""
        last = assignment(root)
        following = _following(root)
        end = following is None or not _goes_on(following, last)
        need(end, "what is written is assigned to further", root)
        whole = dims(root.outputs[0])[last.axis]
        parts = [last]
        written = last.stop - last.start
        node = root
        for _ in range(MAX_ASSIGNMENTS if following is None else _LOOKBACK):
            if written == whole:
                need(parts[-1].stop == whole, "places are written that are not there", root)
                return Found((root,), tuple(one.updates for one in parts), last.axis)
            node = _before(node)
            earlier = assignment(node)
            need(earlier.axis == last.axis, "another axis is assigned to before", node)
            if _is_new(earlier, parts):
                insort(parts, earlier, key=lambda one: one.start)
                written += earlier.stop - earlier.start
        raise Refusal("there are many assignments", root)

    def rewrite(self, found: Found) -> ir.Node:
        """Put the parts one behind the other."""
        return ir.node("Concat", found.parts, {"axis": found.axis})


def _before(node: ir.Node) -> ir.Node:
    """The assignment before another."""
    assert node.inputs[0] is not None
    before = node.inputs[0].producer()
    need(before is not None and is_op(before, "ScatterND"), "places stay as they are", node)
    assert before is not None
    return before


def _following(root: ir.Node) -> ir.Node | None:
    """What alone reads a tensor that was written to, its shape apart, if it writes to it again."""
    written = root.outputs[0]
    readers = [node for node in users(written) if not is_op(node, "Shape")]
    alone = len(readers) == 1 and not written.is_graph_output() and is_op(readers[0], "ScatterND")
    return readers[0] if alone and readers[0].inputs[0] is written else None


def _goes_on(following: ir.Node, last: Assignment) -> bool:
    """Whether another assignment is along the same axis: from it on, these places are seen as well."""
    try:
        return assignment(following).axis == last.axis
    except Refusal:
        return False


def _is_new(earlier: Assignment, parts: list[Assignment]) -> bool:
    """Whether places are not written later, as others are; False if all of them are.

    Args:
        earlier: An assignment.
        parts: Those behind it, in the order of their places.

    Raises:
        Refusal: If some are and some are not.
    """
    at = bisect_left(parts, earlier.stop, key=lambda one: one.start)
    overlapping = at > 0 and parts[at - 1].stop > earlier.start
    if not overlapping:
        return True
    while at > 0 and parts[at - 1].stop > earlier.start:
        at -= 1
    inside = parts[at].start <= earlier.start and _reaches(parts[at:], earlier.stop)
    need(inside, "what is written is written over", earlier.updates)
    return False


def _reaches(parts: list[Assignment], stop: int) -> bool:
    """Whether places that begin with those of the first assignment are written without a gap up to one."""
    end = parts[0].start
    for one in parts:
        if one.start > end or end >= stop:
            break
        end = one.stop
    return end >= stop

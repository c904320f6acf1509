"""A Slice of a Slice is one Slice."""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.integer_ranges import LARGEST, is_endless
from ortopt.graph.match import Dim, Refusal, dims, inputs, is_used_once, need, opset, producer
from ortopt.ops.moves import taken
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule

LAST = 2**63 - 1
Taken = tuple[int, int, int, int]


class Found(Struct, frozen=True):
    """Both Slices, the input of the first one, and the bounds of both together: axis, start, end and step."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    taken: tuple[Taken, ...]


class SliceMerging(RewriteRule[Found]):
    """``Slice(Slice(x))`` → one ``Slice``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Slice",)

    def match(self, root: ir.Node) -> Found:
        """Bounds that are numbers; on a common axis, positive steps."""
        (middle,) = inputs(root, 1)
        first = producer(middle, "Slice")
        need(is_used_once(middle), "the first part is used elsewhere", middle)
        (x,) = inputs(first, 1)
        shape = dims(x)
        inner = {cut.axis: cut for cut in ops.Slice(first).cuts}
        outer = {cut.axis: cut for cut in ops.Slice(root).cuts}
        taken = []
        for axis in sorted(inner.keys() | outer.keys()):
            first_cut, second_cut = inner.get(axis), outer.get(axis)
            if first_cut is None or second_cut is None:
                cut = first_cut or second_cut
                assert cut is not None
                taken.append((axis, *(_number(bound, root) for bound in cut[1:])))
            else:
                taken.append(_composed(first_cut, second_cut, shape[axis], root))
        return Found((first, root), x, tuple(taken))  # type: ignore[arg-type]

    def rewrite(self, found: Found) -> ir.Node:
        """Build the one Slice."""
        return ops.slice_node(found.source, found.taken, opset(found.nodes[-1]))


def _number(bound: Dim, root: ir.Node) -> int:
    if not isinstance(bound, int):
        raise Refusal("a bound is computed", root)
    return bound


def _composed(inner: ops.Cut, outer: ops.Cut, size: Dim, root: ir.Node) -> Taken:
    """The bounds of two Slices along the same axis together."""
    a, b, p = (_number(bound, root) for bound in inner[1:])
    c, d, q = (_number(bound, root) for bound in outer[1:])
    need(p > 0 and q > 0, "it steps backwards", root)
    if isinstance(size, int):
        first = taken(size, a, b, p)
        second = taken(len(first), c, d, q)
        left = first[second.start : second.stop : second.step]
        if len(left) < 2:  # whatever the steps are: they may be beyond 64 bits together
            return (inner.axis, left[0], left[0] + 1, 1) if left else (inner.axis, 0, 0, 1)
        return inner.axis, left.start, left.stop, left.step
    need(min(a, b, c, d) >= 0 and p == q == 1, "the dimension is not fixed, and a bound counts from its end", root)
    need(max(a, c) < LARGEST, "the dimension is not fixed, and a start is beyond any", root)
    ends = [end for end, limit in ((b, b), (a + d, d)) if not is_endless(limit)]
    return inner.axis, a + c, min(ends, default=LAST), 1

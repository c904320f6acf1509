"""A Slice from the first element to the last, with steps of 1, only copies."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.integer_ranges import is_endless
from ortopt.graph.match import dims, inputs, need, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule


class SliceElimination(RewriteRule[Forwarded]):
    """``Slice`` that takes everything in order → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("slice_merging",)  # of two Slices, the bounds of both together are looked at
    roots = ("Slice",)

    def match(self, root: ir.Node) -> Forwarded:
        """Steps of 1 from 0 to the end of each axis."""
        (x,) = inputs(root, 1)
        shape = dims(x)
        for axis, start, end, step in ops.Slice(root).cuts:
            need(same_dim(step, 1), "its steps are not 1", root)
            size = shape[axis]
            from_first = isinstance(start, int) and isinstance(size, int) and start <= -size
            need(same_dim(start, 0) or from_first, "it may leave out the beginning", root)
            long = is_endless(end) or (isinstance(end, int) and isinstance(size, int) and end >= size)
            need(long or same_dim(end, size), "it may leave out the end", root)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

"""A Transpose that keeps the order of the axes, but for those of size 1, moves nothing."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import inputs, need, shape_of
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule


class TransposeElimination(RewriteRule[Forwarded]):
    """``Transpose`` in the order of the axes, or of axes of size 1 alone → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("transpose_merging",)  # of two Transposes, the order of both together is looked at
    roots = ("Transpose",)

    def match(self, root: ir.Node) -> Forwarded:
        """The identity permutation, written or of rank at most 1; or each axis that moves has size 1."""
        (x,) = inputs(root, 1)
        order = ops.Transpose(root).order
        moved = [axis for axis, source in enumerate(order) if axis != source]
        dims = shape_of(x) if moved else None
        need(not moved or (dims is not None and all(dims[axis] == 1 for axis in moved)), "it moves axes", root)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

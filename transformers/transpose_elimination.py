"""A Transpose that keeps the order of the axes moves nothing."""

import onnx_ir as ir

from ortopt.graph.match import attribute, inputs, need, rank
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule


class TransposeElimination(RewriteRule[Forwarded]):
    """``Transpose`` in the order of the axes → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("transpose_merging",)  # of two Transposes, the order of both together is looked at
    roots = ("Transpose",)

    def match(self, root: ir.Node) -> Forwarded:
        """The identity permutation, written or of rank at most 1."""
        (x,) = inputs(root, 1)
        empty: tuple[int, ...] = ()
        order = attribute(root, "perm", empty) or tuple(reversed(range(rank(x))))
        need(order == tuple(range(len(order))), "it moves axes", root)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

"""A Squeeze of a shape without 1s only copies."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.match import dims, inputs, need
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule


class SqueezeElimination(RewriteRule[Forwarded]):
    """``Squeeze`` of no axis → ``x``: without axes, of a shape in which no dimension is 1."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Squeeze",)

    def match(self, root: ir.Node) -> Forwarded:
        """No axes, and no dimension that may be 1."""
        (x,) = inputs(root, 1)
        need(not ops.Squeeze(root).stated_axes, "it names axes", root)
        need(all(symbolic.provably_different(dim, 1) for dim in dims(x)), "a dimension may be 1", x)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

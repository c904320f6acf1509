"""An Unsqueeze at no axis only copies."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import inputs, need
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule


class UnsqueezeElimination(RewriteRule[Forwarded]):
    """``Unsqueeze`` at no axis → ``x``; one of a constant is `constant_folding`'s."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Unsqueeze",)

    def match(self, root: ir.Node) -> Forwarded:
        """An empty list of axes."""
        (x,) = inputs(root, 1)
        need(not ops.Unsqueeze(root).stated_axes, "it adds axes", root)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

"""An Unsqueeze at no axis only copies."""

import onnx_ir as ir

from ortopt.graph.match import attribute, integers, need, opset, values
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule, Root

AXES_ARE_AN_INPUT = 13


class UnsqueezeElimination(RewriteRule[Root]):
    """``Unsqueeze`` at no axis → ``x``; one of a constant is `constant_folding`'s."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Unsqueeze",)

    def match(self, root: ir.Node) -> Root:
        """An empty list of axes."""
        (x,) = values(root, 1)
        older = opset(root) < AXES_ARE_AN_INPUT
        axes = attribute(root, "axes", (0,)) if older else integers(values(root, 2)[1])
        need(axes == (), "it adds axes", root)
        return Root((root,), x)

    def rewrite(self, found: Root) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

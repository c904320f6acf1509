"""An Unsqueeze at no axis only copies."""

import onnx_ir as ir

from ortopt.graph.match import attribute, inputs, integers, need, opset
from ortopt.options import TransformerLevel
from ortopt.rule import Forwarded, RewriteRule
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM


class UnsqueezeElimination(RewriteRule[Forwarded]):
    """``Unsqueeze`` at no axis → ``x``; one of a constant is `constant_folding`'s."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Unsqueeze",)

    def match(self, root: ir.Node) -> Forwarded:
        """An empty list of axes."""
        (x,) = inputs(root, 1)
        older = opset(root) < AXES_ARE_AN_INPUT_FROM[root.op_type]
        axes = attribute(root, "axes", (0,)) if older else integers(inputs(root, 2)[1])
        need(axes == (), "it adds axes", root)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

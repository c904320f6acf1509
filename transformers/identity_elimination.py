"""An Identity only costs a copy and a name."""

import onnx_ir as ir

from ortopt.graph.match import values
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule, Root


class IdentityElimination(RewriteRule[Root]):
    """``Identity(x)`` → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Identity",)

    def match(self, root: ir.Node) -> Root:
        """Any Identity; the framework keeps those that give a graph output its name."""
        (x,) = values(root, 1)
        return Root((root,), x)

    def rewrite(self, found: Root) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

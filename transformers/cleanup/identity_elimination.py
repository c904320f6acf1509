"""An Identity only costs a copy and a name."""

import onnx_ir as ir

from ortopt.graph.match import inputs
from ortopt.options import TransformerLevel
from ortopt.rule import Elimination, Forwarded


class IdentityElimination(Elimination):
    """``Identity(x)`` → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Identity",)

    def match(self, root: ir.Node) -> Forwarded:
        """Any Identity; the framework keeps those that give a graph output its name."""
        (x,) = inputs(root, 1)
        return Forwarded((root,), x)

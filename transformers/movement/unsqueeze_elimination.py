"""An Unsqueeze at no axis only copies."""

import onnx_ir as ir

from ortopt.options import TransformerLevel
from ortopt.rule import Elimination, Forwarded
from ortopt.transformers.movement._copies import copied


class UnsqueezeElimination(Elimination):
    """``Unsqueeze`` at no axis → ``x``; one of a constant is `constant_folding`'s."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Unsqueeze",)

    def match(self, root: ir.Node) -> Forwarded:
        """An empty list of axes."""
        return copied(root)

"""A Squeeze of a shape without 1s only copies."""

import onnx_ir as ir

from ortopt.options import TransformerLevel
from ortopt.rule import Elimination, Forwarded
from ortopt.transformers.movement._copies import copied


class SqueezeElimination(Elimination):
    """``Squeeze`` of no axis → ``x``: without axes, of a shape in which no dimension is 1."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Squeeze",)

    def match(self, root: ir.Node) -> Forwarded:
        """No axes, and no dimension that may be 1."""
        return copied(root)

"""A Flatten of a matrix into the same matrix only copies."""

import onnx_ir as ir

from ortopt.options import TransformerLevel
from ortopt.rule import Elimination, Forwarded
from ortopt.transformers.movement._copies import copied


class FlattenElimination(Elimination):
    """``Flatten`` of a matrix into the same matrix → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Flatten",)

    def match(self, root: ir.Node) -> Forwarded:
        """Two dimensions, flattened between them, or beside one of size 1."""
        return copied(root)

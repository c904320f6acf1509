"""A Transpose that keeps the order of the axes, but for those of size 1, moves nothing."""

import onnx_ir as ir

from ortopt import ops
from ortopt.options import TransformerLevel
from ortopt.rule import Elimination, Forwarded
from ortopt.transformers.movement._copies import copied


class TransposeElimination(Elimination):
    """``Transpose`` in the order of the axes, or of axes of size 1 alone → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("transpose_merging",)  # of two Transposes, the order of both together is looked at
    roots = ("Transpose",)

    def match(self, root: ir.Node) -> Forwarded:
        """The identity permutation, written or of rank at most 1; or each axis that moves has size 1."""
        return copied(root, len(ops.Transpose(root).order))

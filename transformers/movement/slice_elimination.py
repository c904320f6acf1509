"""A Slice from the first element to the last, with steps of 1, only copies."""

import onnx_ir as ir

from ortopt.options import TransformerLevel
from ortopt.rule import Elimination, Forwarded
from ortopt.transformers.movement._copies import copied


class SliceElimination(Elimination):
    """``Slice`` that takes everything in order → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("slice_merging",)  # of two Slices, the bounds of both together are looked at
    roots = ("Slice",)

    def match(self, root: ir.Node) -> Forwarded:
        """Steps of 1 from 0 to the end of each axis."""
        return copied(root)

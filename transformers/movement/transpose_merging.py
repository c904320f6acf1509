"""Two Transposes in a row move the data twice where once, or not at all, would do."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import inputs, producer
from ortopt.options import TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.views.emission import chain
from ortopt.views.reading import through


class TransposeMerging(RewriteRule[Match]):
    """``Transpose(Transpose(x))`` → one ``Transpose``, or ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Transpose",)

    def match(self, root: ir.Node) -> Match:
        """Two known permutations; the first Transpose may have other users, and stays for them."""
        (middle,) = inputs(root, 1)
        first = producer(middle, "Transpose")
        (x,) = inputs(first, 1)
        return Match((root,), chain(through(x, first, root, rank=len(ops.Transpose(first).order)), root).build)

"""A Split into one part, beside empty ones, only copies."""

import onnx_ir as ir

from ortopt.graph.match import inputs, is_used, need
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.views.index_map import identity
from ortopt.views.reading import after


class SplitElimination(RewriteRule[Match]):
    """``Split`` into one part → ``x``; a part that is all of x, beside empty ones that nobody needs, too."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Split",)
    opsets = (2, NEWEST_OPSET)  # in the first version an input could hold the sizes, as floats too

    def match(self, root: ir.Node) -> Match:
        """One output that has a user and is all."""
        (x,) = inputs(root, 1)
        needed = list(filter(is_used, root.outputs))
        need(len(needed) == 1, "several parts are needed", root)
        (part,) = needed
        whole = len(root.outputs) == 1 or after(identity(x), root, part).is_identity
        need(whole, "it leaves something out", root)
        return Match((root,), lambda: {part: x})

"""A Tile with repeats of 1 only copies."""

import onnx_ir as ir

from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, inputs, need, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule


class TileElimination(RewriteRule[Forwarded]):
    """``Tile(x, 1s)`` → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Tile",)
    opsets = (6, NEWEST_OPSET)  # before, it repeated one axis

    def match(self, root: ir.Node) -> Forwarded:
        """Repeats that are known and all 1."""
        x, repeats = inputs(root, 2)
        known = contents(repeats)
        if known is None:
            raise Refusal("the repeats are not known", repeats)
        need(all(same_dim(count, 1) for count in known), "it repeats something, or takes nothing", repeats)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

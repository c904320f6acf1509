"""A Tile that repeats everything once only copies."""

import onnx_ir as ir

from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, need, same_dim, values
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule, Root


class TileElimination(RewriteRule[Root]):
    """``Tile(x, 1s)`` → ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Tile",)
    opsets = (6, NEWEST_OPSET)  # before, it repeated one axis

    def match(self, root: ir.Node) -> Root:
        """Repeats that are known and all 1."""
        x, repeats = values(root, 2)
        known = contents(repeats)
        if known is None:
            raise Refusal("the repeats are not known", repeats)
        need(all(same_dim(count, 1) for count in known), "it repeats something, or takes nothing", repeats)
        return Root((root,), x)

    def rewrite(self, found: Root) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

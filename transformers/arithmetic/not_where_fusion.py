"""A Where with its operands exchanged needs no Not before it."""

import onnx_ir as ir

from ortopt.graph.match import inputs, producer
from ortopt.options import TransformerLevel
from ortopt.rule import Match, RewriteRule


class NotWhereFusion(RewriteRule[Match]):
    """``Where(Not(c), a, b)`` → ``Where(c, b, a)``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Where",)

    def match(self, root: ir.Node) -> Match:
        """Any Where after a Not; the Not stays for its other users, this Where's values among them."""
        inverted, a, b = inputs(root, 3)
        (condition,) = inputs(producer(inverted, "Not"), 1)
        return Match((root,), lambda: ir.node("Where", [condition, b, a]))

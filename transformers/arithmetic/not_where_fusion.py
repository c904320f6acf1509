"""A Where with its operands exchanged needs no Not before it."""

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import inputs, producer
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule


class Found(Struct, frozen=True):
    """The Where, and its operands in the new order."""

    nodes: tuple[ir.Node, ...]
    condition: ir.Value
    yes: ir.Value
    no: ir.Value


class NotWhereFusion(RewriteRule[Found]):
    """``Where(Not(c), a, b)`` → ``Where(c, b, a)``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Where",)

    def match(self, root: ir.Node) -> Found:
        """Any Where after a Not; the Not stays for its other users, this Where's values among them."""
        inverted, a, b = inputs(root, 3)
        (condition,) = inputs(producer(inverted, "Not"), 1)
        return Found((root,), condition, b, a)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Where."""
        return ir.node("Where", [found.condition, found.yes, found.no])

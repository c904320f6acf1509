"""Two Transposes in a row move the data twice where once, or not at all, would do."""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import inputs, need, producer
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule


class Found(Struct, frozen=True):
    """The second Transpose, the input of the first, and the order of both together."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    order: tuple[int, ...]


class TransposeMerging(RewriteRule[Found]):
    """``Transpose(Transpose(x))`` → one ``Transpose``, or ``x``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Transpose",)

    def match(self, root: ir.Node) -> Found:
        """Two known permutations; the first Transpose may have other users, and stays for them."""
        (middle,) = inputs(root, 1)
        first = producer(middle, "Transpose")
        (x,) = inputs(first, 1)
        inner, outer = ops.Transpose(first).order, ops.Transpose(root).order
        need(len(inner) == len(outer), "the permutations do not fit one another", root)
        return Found((root,), x, tuple(inner[axis] for axis in outer))

    def rewrite(self, found: Found) -> ir.Node | ir.Value:
        """Build the one Transpose, if one is left."""
        if found.order == tuple(range(len(found.order))):
            return found.source
        return ir.node("Transpose", [found.source], {"perm": found.order})

"""A Tile that repeats single elements is an Expand, which fills rows where Tile copies them number by number."""

import onnx_ir as ir

from ortopt.graph.facts import contents
from ortopt.graph.match import Refusal, dims, inputs, need, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule

EXPAND_SINCE = 8


class TileCanonicalization(RewriteRule[Forwarded]):
    """``Tile(x, repeats)`` → ``Expand(x, repeats)``, where each axis has one element or is taken once.

    ONNX Runtime is faster so along the last axis, and never slower. What follows may not need the repeated elements at
    all: operands are broadcast.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Tile",)
    opsets = (EXPAND_SINCE, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Forwarded:
        """Axes that have one element, or are repeated once."""
        x, repeats = inputs(root, 2)
        shape, counts = dims(x), contents(repeats)
        if counts is None:
            raise Refusal("the repeats are not known", repeats)
        need(len(counts) == len(shape), "there are not as many repeats as axes", repeats)
        need(not all(same_dim(count, 1) for count in counts), "it repeats nothing", repeats)
        single = all(same_dim(count, 1) or same_dim(dim, 1) for count, dim in zip(counts, shape, strict=True))
        need(single, "an axis that it repeats may have several elements", x)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Node:
        """Build the Expand: its target is as many elements as there are repeats, or 1, which keeps an axis."""
        return ir.node("Expand", [found.value, found.nodes[0].inputs[1]])

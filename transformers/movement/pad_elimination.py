"""A Pad by nothing only copies."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import inputs, need
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule


class PadElimination(RewriteRule[Forwarded]):
    """``Pad`` by nothing → ``x``, in every mode."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Pad",)
    opsets = (2, NEWEST_OPSET)  # in the first version the attribute had another name

    def match(self, root: ir.Node) -> Forwarded:
        """Paddings that are known and all 0."""
        (x,) = inputs(root, 1)
        need(not any(ops.Pad(root).amounts), "it adds or takes something", root)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

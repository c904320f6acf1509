"""A Pad by nothing only copies."""

import onnx_ir as ir

from ortopt.graph.facts import contents
from ortopt.graph.match import Dim, Refusal, attribute, inputs, need, opset, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule
from ortopt.semantics.opset_changes import PADS_ARE_AN_INPUT_FROM


class PadElimination(RewriteRule[Forwarded]):
    """``Pad`` by nothing → ``x``, in every mode."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Pad",)
    opsets = (2, NEWEST_OPSET)  # in the first version the attribute had another name

    def match(self, root: ir.Node) -> Forwarded:
        """Paddings that are known and all 0."""
        (x,) = inputs(root, 1)
        absent: tuple[Dim, ...] | None = None
        older = opset(root) < PADS_ARE_AN_INPUT_FROM["Pad"]
        known = attribute(root, "pads", absent) if older else contents(inputs(root, 2)[1])
        if known is None:
            raise Refusal("the paddings are not known", root)
        need(all(same_dim(amount, 0) for amount in known), "it adds or takes something", root)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value

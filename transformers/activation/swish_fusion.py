"""Swish is one op of the standard; ONNX Runtime takes it apart, and is faster with its own QuickGelu."""

import onnx_ir as ir

from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.activation._swish import Swish, swish


class SwishFusion(RewriteRule[Swish]):
    """``x · Sigmoid(alpha · x)`` → ``Swish<alpha = alpha>(x)``, for runtimes without QuickGelu."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("opset_conversion", "quick_gelu_fusion")
    roots = ("Sigmoid",)
    opsets = (24, NEWEST_OPSET)
    looks_downstream = True
    fuses = (("", "Swish"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Swish:
        """The product below the sigmoid, of what is scaled above it."""
        found = swish(root)
        need_single(found.x)
        return found

    def rewrite(self, found: Swish) -> dict[ir.Value, ir.Value]:
        """Build the activation in place of the product."""
        return {found.y: ir.node("Swish", [found.x], {"alpha": found.alpha}).outputs[0]}

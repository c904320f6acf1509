"""A sigmoid of x, scaled, times x: QuickGELU, or SiLU where the scale is 1, in one pass over memory."""

import onnx_ir as ir

from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.activation._swish import Swish, swish


class QuickGeluFusion(RewriteRule[Swish]):
    """``x · Sigmoid(alpha · x)`` → ``com.microsoft.QuickGelu<alpha = alpha>(x)``."""

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Sigmoid",)
    looks_downstream = True
    produces = ((MICROSOFT, "QuickGelu"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Swish:
        """The product below the sigmoid, of what is scaled above it."""
        return swish(root)

    def rewrite(self, found: Swish) -> dict[ir.Value, ir.Value]:
        """Build the activation in place of the product."""
        node = ir.node("QuickGelu", [found.x], {"alpha": found.alpha}, domain=MICROSOFT)
        return {found.y: node.outputs[0]}

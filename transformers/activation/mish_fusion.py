"""Mish, spelled out, is three to five ops; the standard has one."""

import onnx_ir as ir

from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.activation._mish import Mish, mish


class MishFusion(RewriteRule[Mish]):
    """``x · Tanh(Softplus(x))`` → ``Mish(x)``, the softplus in any spelling.

    Where ``Exp(x)`` overflows, the Tanh is 1 in any case.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "opset_conversion", "softplus_fusion")
    roots = ("Tanh",)
    opsets = (18, NEWEST_OPSET)
    lookback = 6
    looks_downstream = True
    fuses = (("", "Mish"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Mish:
        """The softplus above the Tanh, and the product with the same x below it."""
        return mish(root)

    def rewrite(self, found: Mish) -> dict[ir.Value, ir.Value]:
        """Build the Mish in place of the product."""
        return {found.y: ir.node("Mish", [found.x]).outputs[0]}

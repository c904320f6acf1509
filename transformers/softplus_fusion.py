"""``log(1 + eˣ)`` is one op; the CPU's kernel for it is slower than what it replaces."""

import onnx_ir as ir

from ortopt.graph.match import need
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.patterns.softplus import Softplus, softplus
from ortopt.rule import NEWEST_OPSET, RewriteRule


class SoftplusFusion(RewriteRule[Softplus]):
    """``Where(x > 20, x, Log(Exp(x) + 1))`` → ``Softplus(x)``; without the guard where x is never large.

    ``Log(Exp(x) + 1)`` alone is infinite for an x of 89, and a Softplus is not: it stays as it is.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding",)
    roots = ("Add", "Log", "Where")
    opsets = (9, NEWEST_OPSET)
    lookback = 5
    fuses = (("", "Softplus"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Softplus:
        """A form that does not overflow where a Softplus does not."""
        spelled = softplus(root)
        need_single(spelled.x)
        need(not spelled.overflows, "exp(x) may overflow, and the result be infinite", spelled.x)
        return spelled

    def rewrite(self, found: Softplus) -> ir.Node:
        """Build the Softplus."""
        return ir.node("Softplus", [found.x])

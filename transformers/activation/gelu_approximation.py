"""GELU by a hyperbolic tangent is faster than by the error function, and differs from it in the fourth digit."""

import onnx_ir as ir

from ortopt.graph.match import attribute, inputs, need
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import Forwarded, RewriteRule
from ortopt.semantics.domains import MICROSOFT


class GeluApproximation(RewriteRule[Forwarded]):
    """``Gelu(x)`` → ``Gelu<approximate="tanh">(x)``; ONNX Runtime's ``Gelu`` and ``BiasGelu`` → ``FastGelu``.

    The results differ by up to 5e-4, so this runs only if ``--enable`` asks for it.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("bias_gelu_fusion", "gelu_fusion")
    enabled = False
    roots = ("Gelu", f"{MICROSOFT}::BiasGelu", f"{MICROSOFT}::Gelu")
    produces = ((MICROSOFT, "FastGelu"),)
    numerics = Numerics.APPROXIMATE

    def match(self, root: ir.Node) -> Forwarded:
        """A Gelu by the error function."""
        need(attribute(root, "approximate", "none") == "none", "it is approximate already", root)
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        """Build the approximate op, with the bias if there is one."""
        (gelu,) = found.nodes
        if gelu.domain == "":
            return ir.node("Gelu", [found.value], {"approximate": "tanh"})
        return ir.node("FastGelu", gelu.inputs, domain=MICROSOFT)

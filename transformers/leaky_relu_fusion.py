"""A Relu with a slope, spelled out, reads x twice or more; it is one kernel, and part of the convolution before it."""

import onnx_ir as ir

from ortopt.graph.match import need
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.patterns.sloped_relu import LOOKBACK, ROOTS, SlopedRelu, sloped_relu
from ortopt.rule import NEWEST_OPSET, RewriteRule


class LeakyReluFusion(RewriteRule[SlopedRelu]):
    """``Max(x, a · x)`` → ``LeakyRelu<alpha = a>(x)``; so for Where and for ``Relu(x) - a · Relu(-x)``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding", "constant_reassociation", "not_where_fusion", "relu_fusion")
    roots = ROOTS
    opsets = (9, NEWEST_OPSET)  # before, there was no Where
    lookback = LOOKBACK
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> SlopedRelu:
        """A slope that is one number."""
        sloped = sloped_relu(root)
        need(sloped.slope.size == 1, "the slope is not one number", sloped.x)
        need_single(sloped.x)
        return sloped

    def rewrite(self, found: SlopedRelu) -> ir.Node:
        """Build the LeakyRelu."""
        return ir.node("LeakyRelu", [found.x], {"alpha": float(found.slope.reshape(-1)[0])})

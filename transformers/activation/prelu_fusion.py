"""A Relu with a slope for each channel is one op; the CPU's kernel for it is slower than what it replaces."""

import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import dtype, need
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.activation._sloped_relu import LOOKBACK, ROOTS, SlopedRelu, sloped_relu


class PreluFusion(RewriteRule[SlopedRelu]):
    """``Max(x, A · x)`` → ``PRelu(x, A)`` for constants A; so for Where and for ``Relu(x) - A · Relu(-x)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding",)
    roots = ROOTS
    opsets = (9, NEWEST_OPSET)  # before, there was no Where, and PRelu did not broadcast
    lookback = LOOKBACK
    looks_downstream = True
    fuses = (("", "PRelu"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> SlopedRelu:
        """A slope for each channel: for one number see `leaky_relu_fusion`."""
        sloped = sloped_relu(root)
        need_single(sloped.x)
        need(sloped.slope.size > 1, "the slope is one number", sloped.x)
        return sloped

    def rewrite(self, found: SlopedRelu) -> dict[ir.Value, ir.Value]:
        """Build the PRelu."""
        return {found.y: ir.node("PRelu", [found.x, constant(found.slope, dtype(found.x))]).outputs[0]}

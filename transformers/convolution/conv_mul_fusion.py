"""A constant factor for each channel of a convolution's result can be in its weights."""

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import inputs, operand_from, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.convolution import CONVOLUTIONS, Folded, fold, per_channel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class ConvMulFusion(RewriteRule[Folded]):
    """``Conv(x, W, b) * c`` → ``Conv(x, W * c, b * c)``, ``/ c`` and ``ConvTranspose`` too."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    roots = ("Mul", "Div")
    needs = CONVOLUTIONS
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Folded:
        """A constant that differs along the channels only."""
        if root.op_type == "Mul":
            convolution, other = operand_from(root, *CONVOLUTIONS)
            return fold(convolution, root, per_channel(other, convolution), None)
        x, other = inputs(root, 2)
        convolution = producer(x, *CONVOLUTIONS)
        with np.errstate(divide="ignore"):
            return fold(convolution, root, 1 / per_channel(other, convolution), None)

    def rewrite(self, found: Folded) -> ir.Node:
        """Build the convolution."""
        return found.node()

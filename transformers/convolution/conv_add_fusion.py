"""A constant for each channel that is added to a convolution's result can be its bias."""

import onnx_ir as ir

from ortopt.graph.match import inputs, operand_from, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.convolution import CONVOLUTIONS, Folded, fold, per_channel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class ConvAddFusion(RewriteRule[Folded]):
    """``Conv(x, W, b) + c`` → ``Conv(x, W, b + c)``, ``- c``, a Sum of both and ``ConvTranspose`` too."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    roots = ("Add", "Sub", "Sum")
    needs = CONVOLUTIONS
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Folded:
        """A constant that differs along the channels only."""
        if root.op_type != "Sub":
            convolution, other = operand_from(root, *CONVOLUTIONS)
            return fold(convolution, root, None, per_channel(other, convolution))
        x, other = inputs(root, 2)
        convolution = producer(x, *CONVOLUTIONS)
        return fold(convolution, root, None, -per_channel(other, convolution))

    def rewrite(self, found: Folded) -> ir.Node:
        """Build the convolution."""
        return found.node()

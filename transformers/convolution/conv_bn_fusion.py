"""At inference a BatchNormalization scales and shifts channels, which a convolution before it can do for nothing."""

import onnx_ir as ir

from ortopt.graph.match import inputs, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.batch_normalization import scale_and_shift
from ortopt.patterns.convolution import CONVOLUTIONS, Folded, channels_of, fold
from ortopt.rule import NEWEST_OPSET, RewriteRule


class ConvBnFusion(RewriteRule[Folded]):
    """``BatchNormalization(Conv(x, W, b))`` → ``Conv(x, W', b')``, ``ConvTranspose`` too."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("BatchNormalization",)
    opsets = (7, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Folded:
        """A normalization by constants, not in training mode."""
        (x,) = inputs(root, 1)
        convolution = producer(x, *CONVOLUTIONS)
        scale, shift = scale_and_shift(root, channels_of(convolution))
        return fold(convolution, root, scale, shift)

    def rewrite(self, found: Folded) -> ir.Node:
        """Build the convolution."""
        return found.node()

"""At inference a BatchNormalization scales and shifts channels, which a convolution before it can do for nothing."""

import numpy as np
import onnx_ir as ir

from ortopt.convolution import CONVOLUTIONS, Folded, channels_of, fold, vector
from ortopt.graph.match import attribute, need, opset, producer, values
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class ConvBnFusion(RewriteRule[Folded]):
    """``BatchNormalization(Conv(x, W, b))`` → ``Conv(x, W', b')``, ``ConvTranspose`` too."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("BatchNormalization",)
    opsets = (7, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Folded:
        """A normalization by constants that is not training."""
        x, gamma, beta, mean, variance = values(root, 5)
        convolution = producer(x, *CONVOLUTIONS)
        version = opset(root)
        if version < 9:
            need(attribute(root, "spatial", 1) == 1, "it normalizes each position by itself", root)
        if version >= 14:
            need(attribute(root, "training_mode", 0) == 0, "it is in training mode", root)
        need(not any(value.name for value in root.outputs[1:]), "it is in training mode", root)
        channels = channels_of(convolution)
        epsilon = attribute(root, "epsilon", 1e-5)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = vector(gamma, channels) / np.sqrt(vector(variance, channels) + epsilon)
            shift = vector(beta, channels) - vector(mean, channels) * scale
        return fold(convolution, root, scale, shift)

    def rewrite(self, found: Folded) -> ir.Node:
        """Build the convolution."""
        return found.node()

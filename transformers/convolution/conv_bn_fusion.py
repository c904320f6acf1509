"""At inference a BatchNormalization scales and shifts channels, which a convolution before it can do for nothing."""

from ortopt.linear.folding import LinearFolding
from ortopt.options import TransformerLevel


class ConvBnFusion(LinearFolding):
    """``BatchNormalization(Conv(x, W, b))`` → ``Conv(x, W', b')``, ``ConvTranspose`` too."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("BatchNormalization",)

"""A constant factor for each channel of a convolution's result can be in its weights."""

from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import CONVOLUTIONS
from ortopt.options import TransformerLevel


class ConvMulFusion(LinearFolding):
    """``Conv(x, W, b) * c`` → ``Conv(x, W * c, b * c)``, ``/ c`` and ``ConvTranspose`` too."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    roots = ("Mul", "Div")
    needs = CONVOLUTIONS

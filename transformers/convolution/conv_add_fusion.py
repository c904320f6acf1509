"""A constant for each channel that is added to a convolution's result can be its bias."""

from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import CONVOLUTIONS
from ortopt.options import TransformerLevel


class ConvAddFusion(LinearFolding):
    """``Conv(x, W, b) + c`` → ``Conv(x, W, b + c)``, ``- c``, a Sum of both and ``ConvTranspose`` too."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    roots = ("Add", "Sub", "Sum")
    needs = CONVOLUTIONS

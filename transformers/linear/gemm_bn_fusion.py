"""A BatchNormalization after a Gemm scales the columns of a constant matrix: that can be computed now."""

from ortopt.linear.folding import LinearFolding
from ortopt.options import TransformerLevel


class GemmBnFusion(LinearFolding):
    """``BatchNormalization(Gemm(a, B, C))`` → ``Gemm(a, B', C')``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("BatchNormalization",)
    into = ("Gemm",)

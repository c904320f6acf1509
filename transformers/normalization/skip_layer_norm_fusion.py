"""A residual connection and the normalization behind it read and write the same tensor: one kernel does both.

On the CPU, ONNX Runtime 1.31's kernel is slower than the two kernels that it replaces, for they are vectorized and it
is not: the table of costs keeps it away from there.
"""

import onnx_ir as ir

from ortopt.graph.match import inputs, optional
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.normalization._skip_normalization import skip_match


class SkipLayerNormFusion(RewriteRule[Match]):
    """``LayerNormalization(x + skip + c, scale, bias)`` → ``com.microsoft.SkipLayerNormalization(x, skip, …, c)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("layer_norm_fusion",)
    roots = ("LayerNormalization",)
    lookback = 3
    produces = ((MICROSOFT, "SkipLayerNormalization"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A sum whose operands the kernel takes."""
        _, scale = inputs(root, 2)
        return skip_match("SkipLayerNormalization", root, (scale, optional(root, 2)))

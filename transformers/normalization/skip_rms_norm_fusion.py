"""A residual connection and the normalization behind it read and write the same tensor: one kernel does both.

On the CPU, ONNX Runtime 1.31's kernel is slower than the two kernels that it replaces, for they are vectorized and it
is not: the table of costs keeps it away from there.
"""

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import attribute, inputs, need
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.normalization._skip_normalization import Skip, skip_above, skip_node


class Found(Struct, frozen=True):
    """The nodes, the sum above, and the parameters of the normalization."""

    nodes: tuple[ir.Node, ...]
    skip: Skip
    scale: ir.Value
    epsilon: float
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The sum too: the kernel gives it as an output of its own."""
        return (self.skip.total,)


class SkipRmsNormFusion(RewriteRule[Found]):
    """``RMSNormalization(x + skip + c, scale)`` → ``com.microsoft.SkipSimplifiedLayerNormalization``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("rms_norm_fusion",)
    roots = ("RMSNormalization", "SimplifiedLayerNormalization")
    lookback = 3
    produces = ((MICROSOFT, "SkipSimplifiedLayerNormalization"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A sum whose operands the kernel takes."""
        _, scale = inputs(root, 2)
        skip = skip_above(root, (scale,))
        epsilon = attribute(root, "epsilon", 1e-5)
        need(epsilon >= 0, "the kernel wants an epsilon of at least 0", root)
        return Found((*skip.nodes, root), skip, scale, epsilon, root.outputs[0])

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the kernel's node."""
        node = skip_node("SkipSimplifiedLayerNormalization", found.skip, (found.scale,), found.epsilon)
        return {found.y: node.outputs[0]} | ({found.skip.total: node.outputs[3]} if len(node.outputs) > 1 else {})

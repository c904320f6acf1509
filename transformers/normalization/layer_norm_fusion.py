"""Nine kernels that each read the whole tensor become one that reads it twice."""

from dataclasses import dataclass

import onnx_ir as ir

from ortopt.graph.match import need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.layer_normalization import ROOTS, Normalization, attributes_of, layer_normalization, scale_of
from ortopt.rule import RewriteRule


@dataclass(frozen=True)
class LayerNormFusionOptions:
    """What may be emitted.

    Attributes:
        private_op: Whether level 2 emits, below opset 17, ONNX Runtime's private op of this name in ai.onnx: ONNX
            Runtime loads such a file, and onnx's checker and other runtimes refuse it.
    """

    private_op: bool = False


class LayerNormFusion(RewriteRule[Normalization]):
    """``scale · (x - mean(x)) / Sqrt(mean((x - mean(x))²) + ε) + bias`` → ``LayerNormalization(x, scale, bias)``."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    after = ("cast_elimination", "constant_folding", "opset_conversion")
    roots = ROOTS
    lookback = 7
    looks_downstream = True
    produces = (("", "LayerNormalization"),)
    numerics = Numerics.REORDERED
    Options = LayerNormFusionOptions

    def match(self, root: ir.Node) -> Normalization:
        """The normalization, if the opset has an op for it."""
        normalization = layer_normalization(root)
        have = opset(root)
        need(have >= 17 or self.options.private_op, f"opset {have} has no LayerNormalization", root)
        return normalization

    def rewrite(self, found: Normalization) -> dict[ir.Value, ir.Value]:
        """Build the LayerNormalization; it must have a scale."""
        inputs = [found.x, scale_of(found)] if found.bias is None else [found.x, scale_of(found), found.bias]
        return {found.y: ir.node("LayerNormalization", inputs, attributes_of(found)).outputs[0]}

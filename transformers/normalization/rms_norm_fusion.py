"""Root-mean-square normalization, as Llama and T5 spell it, becomes one kernel that reads its input twice."""

from dataclasses import dataclass

import onnx_ir as ir

from ortopt.graph.match import need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.layer_normalization import ROOTS, Normalization, attributes_of, rms_normalization, scale_of
from ortopt.rule import RewriteRule


@dataclass(frozen=True)
class RmsNormFusionOptions:
    """What may be emitted.

    Attributes:
        private_op: Whether level 2 emits, below opset 23, ONNX Runtime's private SimplifiedLayerNormalization in
            ai.onnx: ONNX Runtime loads such a file, and onnx's checker and other runtimes refuse it.
    """

    private_op: bool = False


class RmsNormFusion(RewriteRule[Normalization]):
    """``scale · x / Sqrt(mean(x²) + ε)`` → ``RMSNormalization(x, scale)``."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    after = ("cast_elimination", "constant_folding", "layer_norm_fusion", "opset_conversion")
    roots = ROOTS
    lookback = 6
    looks_downstream = True
    produces = (("", "SimplifiedLayerNormalization"),)
    fuses = (("", "RMSNormalization"), *produces)
    numerics = Numerics.REORDERED
    Options = RmsNormFusionOptions

    def match(self, root: ir.Node) -> Normalization:
        """The normalization, if the opset has an op for it."""
        normalization = rms_normalization(root)
        have = opset(root)
        need(have >= 23 or self.options.private_op, f"opset {have} has no RMSNormalization", root)
        return normalization

    def rewrite(self, found: Normalization) -> dict[ir.Value, ir.Value]:
        """Build the normalization; it must have a scale."""
        op = "RMSNormalization" if opset(found.nodes[0]) >= 23 else "SimplifiedLayerNormalization"
        return {found.y: ir.node(op, [found.x, scale_of(found)], attributes_of(found)).outputs[0]}

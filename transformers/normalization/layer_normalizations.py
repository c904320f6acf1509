"""Normalizations over the last axes, spelled out, become one kernel that reads its input twice."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortopt.graph.match import need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.layer_normalization import (
    ROOTS,
    Normalization,
    attributes_of,
    layer_normalization,
    rms_normalization,
    scale_of,
)
from ortopt.rule import Match, RewriteRule


@dataclass(frozen=True)
class LayerNormFusionOptions:
    """What may be emitted.

    Attributes:
        private_op: Whether level 2 emits, below opset 17, ONNX Runtime's private op of this name in ai.onnx: ONNX
            Runtime loads such a file, and onnx's checker and other runtimes refuse it.
    """

    private_op: bool = False


@dataclass(frozen=True)
class RmsNormFusionOptions:
    """What may be emitted.

    Attributes:
        private_op: Whether level 2 emits, below opset 23, ONNX Runtime's private SimplifiedLayerNormalization in
            ai.onnx: ONNX Runtime loads such a file, and onnx's checker and other runtimes refuse it.
    """

    private_op: bool = False


class _NormalizationFusion(RewriteRule[Match]):
    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    roots = ROOTS
    looks_downstream = True
    numerics = Numerics.REORDERED


class LayerNormFusion(_NormalizationFusion):
    """``scale · (x - mean(x)) / Sqrt(mean((x - mean(x))²) + ε) + bias`` → ``LayerNormalization(x, scale, bias)``."""

    after = ("cast_elimination", "constant_folding", "opset_conversion")
    lookback = 7
    produces = (("", "LayerNormalization"),)
    Options = LayerNormFusionOptions

    def match(self, root: ir.Node) -> Match:
        """The normalization, if the opset has an op for it."""
        normalization = layer_normalization(root)
        have = opset(root)
        need(have >= 17 or self.options.private_op, f"opset {have} has no LayerNormalization", root)
        return _one_op(normalization, "LayerNormalization")


class RmsNormFusion(_NormalizationFusion):
    """``scale · x / Sqrt(mean(x²) + ε)`` → ``RMSNormalization(x, scale)``."""

    after = ("cast_elimination", "constant_folding", "layer_norm_fusion", "opset_conversion")
    lookback = 6
    produces = (("", "SimplifiedLayerNormalization"),)
    fuses = (("", "RMSNormalization"), *produces)
    Options = RmsNormFusionOptions

    def match(self, root: ir.Node) -> Match:
        """The normalization, if the opset has an op for it."""
        normalization = rms_normalization(root)
        have = opset(root)
        need(have >= 23 or self.options.private_op, f"opset {have} has no RMSNormalization", root)
        return _one_op(normalization, "RMSNormalization" if have >= 23 else "SimplifiedLayerNormalization")


def _one_op(found: Normalization, op: str) -> Match:
    """The match that one op replaces; it must have a scale."""
    bias = [] if found.bias is None else [found.bias]
    attributes = attributes_of(found)
    return Match.ending_in(found.y, found.nodes, lambda: ir.node(op, [found.x, scale_of(found), *bias], attributes))

"""Normalizations over the last axes, spelled out, become one kernel that reads its input twice.

Of heads that are normalized after they were moved the move comes last, where attention and rotary embedding see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import dims, inputs, is_used, is_used_once, need, opset, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.layer_normalization import (
    ROOTS,
    Normalization,
    layer_normalization,
    node_of,
    rms_normalization,
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
    lookback = 10
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
    lookback = 7
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
    return Match.ending_in(found.y, found.nodes, partial(node_of, op, found))


HEADS_FIRST: tuple[int, ...] = (0, 2, 1, 3)
RANK = 4


class NormTransposeReordering(RewriteRule[Match]):
    """``RMSNormalization(Transpose(x))`` of heads, each normalized for itself → ``Transpose(RMSNormalization(x))``.

    So for a LayerNormalization. Kernels that read heads side by side then need no Transpose. The pass runs once, when
    normalizations have been recognised, and rotary embeddings have not.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("layer_norm_fusion", "rms_norm_fusion")
    apply_once = True
    roots = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")

    def match(self, root: ir.Node) -> Match:
        """A normalization of the last dimension, which the Transpose leaves where it is."""
        x, *weights = inputs(root, len(root.inputs))
        transpose = producer(x, "Transpose")
        need(ops.Transpose(transpose).order == HEADS_FIRST, "no heads are moved", transpose)
        need(is_used_once(x), "the heads are used elsewhere", x)
        need(ops.OneAxis(root).is_last, "more than the last dimension is normalized", root)
        need(all(len(dims(value)) == 1 for value in weights), "a weight differs between positions or heads", root)
        need(not any(map(is_used, root.outputs[1:])), "its statistics are asked for", root)
        return Match((transpose, root), lambda: _reordered(transpose, root))


def _reordered(transpose: ir.Node, root: ir.Node) -> ir.Node:
    """The normalization of what was not moved, and the Transpose."""
    node = ops.copied(root, [*inputs(transpose, 1), *root.inputs[1:]])
    return ir.node("Transpose", [node.outputs[0]], {"perm": HEADS_FIRST})

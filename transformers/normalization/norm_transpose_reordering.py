"""Heads that are normalized after they were moved: the move comes last, where attention and rotary embedding see it."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import dims, inputs, is_used, is_used_once, need, producer
from ortopt.options import TransformerLevel
from ortopt.rule import Match, RewriteRule

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

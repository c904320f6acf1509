"""A rotary position embedding becomes one kernel, which reads heads where they lie."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention.heads import HEADS_FIRST
from ortopt.patterns.rotary import Rotary, rotary, without_heads
from ortopt.rule import RewriteRule

STANDARD_FROM = 23
"""The version of ai.onnx that has RotaryEmbedding."""


class RotaryEmbeddingFusion(RewriteRule[Rotary]):
    """``x · cos + Concat(-x₂, x₁) · sin``, the halves of x being x₁ and x₂ → ``RotaryEmbedding(x, cos, sin)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("opset_conversion", "constant_folding")
    roots = ("Add",)
    lookback = 6
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Rotary:
        """The embedding, if the opset has an op for it."""
        found = rotary(root)
        have = opset(root)
        need(have >= STANDARD_FROM, f"opset {have} has no RotaryEmbedding", root)
        return found

    def rewrite(self, found: Rotary) -> dict[ir.Value, ir.Value]:
        """Build the embedding: of heads side by side where there are such ones."""
        tables = [without_heads(table) for table in (found.cosines, found.sines)]
        heads = found.x
        if heads.rows is None:
            return {found.y: ir.node("RotaryEmbedding", [heads.heads_first(), *tables]).outputs[0]}
        embedded = ir.node("RotaryEmbedding", [heads.merged(), *tables], {"num_heads": heads.count}).outputs[0]
        rows = ir.node("Reshape", [embedded, constant([0, 0, heads.count, heads.size])]).outputs[0]
        return {found.y: ir.node("Transpose", [rows], {"perm": HEADS_FIRST}).outputs[0]}

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
    """``x · cos + Concat(-x₂, x₁) · sin``, the halves of x being x₁ and x₂ → ``RotaryEmbedding(x, cos, sin)``.

    The standard operator has tables for each sequence of the batch; ONNX Runtime's own has one for all.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("opset_conversion", "constant_folding")
    roots = ("Add",)
    lookback = 6
    looks_downstream = True
    produces = (("com.microsoft", "RotaryEmbedding"),)
    fuses = (("", "RotaryEmbedding"), *produces)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Rotary:
        """The embedding, if there is an op for it."""
        embedding = rotary(root)
        have = opset(root)
        need(embedding.shared or have >= STANDARD_FROM, f"opset {have} has no RotaryEmbedding", root)
        return embedding

    def rewrite(self, found: Rotary) -> dict[ir.Value, ir.Value]:
        """Build the embedding: of heads side by side where there are such ones."""
        tables = [without_heads(table) for table in (found.cosines, found.sines)]
        heads = found.x
        if heads.rows is None:
            return {found.y: _embedded(heads.heads_first(), tables, {}, shared=found.shared)}
        embedded = _embedded(heads.merged(), tables, {"num_heads": heads.count}, shared=found.shared)
        rows = ir.node("Reshape", [embedded, constant([0, 0, heads.count, heads.size])]).outputs[0]
        return {found.y: ir.node("Transpose", [rows], {"perm": HEADS_FIRST}).outputs[0]}


def _embedded(x: ir.Value, tables: list[ir.Value], attributes: dict[str, int], *, shared: bool) -> ir.Value:
    """The embedding of a value by tables [batch, length, size / 2]."""
    if not shared:
        return ir.node("RotaryEmbedding", [x, *tables], attributes).outputs[0]
    flat = [ir.node("Squeeze", [table, constant([0])]).outputs[0] for table in tables]
    first = constant([0])  # the position of the first element, in each sequence
    return ir.node("RotaryEmbedding", [x, first, *flat], attributes, domain="com.microsoft").outputs[0]

"""A rotary position embedding becomes one kernel, which reads heads where they lie."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import dtype, need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.rotary.block import ROOTS, STANDARD_FROM, Rotary, rotary, wants_standard_op
from ortopt.patterns.rotary.operands import Operand, for_each_sequence, operand, restored, rows_of, table_of
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT

ROWS_FROM = 14
"""The version of ai.onnx that can say which rows of one table are whose, where sequences have tables of their own."""


class RotaryEmbeddingFusion(RewriteRule[Rotary]):
    """``x · cos + Concat(-x₂, x₁) · sin``, the halves of x being x₁ and x₂ → ``RotaryEmbedding(x, cos, sin)``.

    Pairs may be neighbours too, and only the first elements of a head may be turned. The standard operator has tables
    for each sequence of the batch; ONNX Runtime's own has one for all, in which each sequence may have rows of its own.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("opset_conversion", "constant_folding", "norm_transpose_reordering")
    roots = ROOTS
    lookback = 10
    looks_downstream = True
    produces = ((MICROSOFT, "RotaryEmbedding"),)
    fuses = (("", "RotaryEmbedding"), *produces)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Rotary:
        """The embedding, if there is an op for it."""
        embedding = rotary(root)
        have = opset(root)
        need(embedding.shared or have >= ROWS_FROM, f"opset {have} has no RotaryEmbedding", root)
        return embedding

    def rewrite(self, found: Rotary) -> dict[ir.Value, ir.Value]:
        """Build the embedding: of heads side by side where there are such ones."""
        version = opset(found.nodes[0])
        tables = [table_of(found, table, version) for table in (found.cosines, found.sines)]
        x = operand(found)
        y = restored(found, _embedded(found, x, tables), x)
        return {found.y: ir.node("Concat", [*found.lead, y], {"axis": -1}).outputs[0] if found.lead else y}


def _embedded(found: Rotary, operand: Operand, tables: list[ir.Value]) -> ir.Value:
    x, partial, attributes = operand.value, found.turned < found.size, {}
    if operand.side_by_side or partial:
        attributes["num_heads"] = found.layout.head_count
    if partial:
        attributes["rotary_embedding_dim"] = found.turned
    if found.interleaved:
        attributes["interleaved"] = 1
    if wants_standard_op(found) and opset(found.nodes[0]) >= STANDARD_FROM:
        if found.shared:
            tables = [for_each_sequence(found, table, x) for table in tables]
        return ir.node("RotaryEmbedding", [x, *tables], attributes).outputs[0]
    positions = constant([0])  # of the first element, in each sequence
    if not found.shared:
        positions, tables = rows_of(tables, found.turned // 2, dtype(found.y))
    return ir.node("RotaryEmbedding", [x, positions, *tables], attributes, domain=MICROSOFT).outputs[0]

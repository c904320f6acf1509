"""Softmax attention, in whatever spelling, becomes one kernel that moves no heads around."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import need
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention import mask
from ortopt.patterns.attention.block import Attention, attention
from ortopt.patterns.attention.contraction import PRODUCTS
from ortopt.patterns.attention.emission import (
    bias_of_rank_4,
    check_layouts,
    has_standard_op,
    key_positions,
    operands,
    replacements,
)
from ortopt.patterns.attention.emptiness import check_masked_rows, guarded, may_be_empty
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT


class AttentionFusion(RewriteRule[Attention]):
    """``Softmax(scale · q · kᵀ + mask) · v``, with heads split and joined → ``Attention(q, k, v, mask, past)``.

    The standard operator where the opset has it and no dimension can be 0, which its kernel refuses, or, where query
    heads share keys, in an If that asks; else ONNX Runtime's MultiHeadAttention, for which key heads that query heads
    share are repeated, if nothing caps the scores, and no row that can be masked as a whole is guarded.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("opset_conversion", "constant_folding", "rotary_embedding_fusion", "group_query_attention_fusion")
    roots = PRODUCTS
    lookback = 12
    looks_downstream = True
    produces = ((MICROSOFT, "MultiHeadAttention"),)
    fuses = (("", "Attention"), *produces)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Attention:
        """The block, if there is an op for it."""
        block = attention(root, assumes_nonempty=True)  # the kernel runs only there
        if has_standard_op(block):
            check_masked_rows(block)
            check_layouts(block)
            return block
        block = attention(root)
        if not block.flat or block.keys.count != block.queries.count:
            block = block.as_read()
        _check_own_op(block)
        check_layouts(block)
        return block

    def numerics_of(self, found: Attention) -> Numerics:
        """Whether it is the same for all numbers, rounding apart, or for finite ones."""
        return Numerics.FINITE if found.finite else self.numerics

    def rewrite(self, found: Attention) -> dict[ir.Value, ir.Value]:
        """Build the attention: on values that are not split into heads where there are such ones."""
        standard = has_standard_op(found)
        node = _standard(found) if standard else _multi_head(found)
        if standard and may_be_empty(found):
            node = guarded(found, node)
        return replacements(found, node.outputs)


def _check_own_op(block: Attention) -> None:
    """Refuse where MultiHeadAttention would not compute the same."""
    root = block.core[0]
    need(not block.cap, "MultiHeadAttention has no cap", root)
    shared = all(part.count and not block.queries.count % part.count for part in (block.keys, block.values))
    need(shared, "the heads of keys are not repeated as often as each other", root)
    if not block.flat:
        moved, _ = block.result.best(block.result.roles.merged)
        need(moved > 0, "MultiHeadAttention gives heads side by side, which nothing asks for", root)
    if block.keys_first or block.past is not None:
        alike = block.keys.size == block.values.size
        need(alike, "MultiHeadAttention wants keys and values with heads of one size", root)
    infinite = block.guarded and block.bias is not None and block.bias.depth is mask.Depth.UNKNOWN
    need(not infinite, "MultiHeadAttention gives NaN where a row is masked as a whole, and the original gives 0", root)


def _standard(block: Attention) -> ir.Node:
    attributes: dict[str, float | int] = {"scale": block.scale}
    if block.flat:
        attributes |= {"q_num_heads": block.queries.count, "kv_num_heads": block.keys.count}
    query, key, value = operands(block)
    bias: ir.Value | None = None
    if block.cap:
        attributes["softcap"] = block.cap
    if block.bias is not None:
        asked = block.bias.is_cut or (block.past is not None and not block.bias.whole)
        length = key_positions(block) if asked else None
        bias = mask.unmasked_bias(block.bias.build(length), guarded=block.guarded, kind=block.bias.kind)
        bias = block.bias.full(bias, block.queries, block.read_keys, length)
    if block.past is None:
        return ir.node("Attention", [query, key, value, *([] if bias is None else [bias])], attributes)
    inputs = [query, key, value, bias, block.past.key, block.past.value]
    return ir.node("Attention", inputs, attributes, num_outputs=3)


def _multi_head(block: Attention) -> ir.Node:
    attributes = {"num_heads": block.queries.count, "scale": block.scale}
    query, key, value = operands(block)
    inputs: list[ir.Value | None] = [query, key, value]
    if block.bias is not None:
        inputs += [None, None, bias_of_rank_4(block)]
    if block.past is not None:
        inputs += [None] * (6 - len(inputs)) + [block.past.key, block.past.value]
    outputs = 1 if block.past is None else 3
    return ir.node("MultiHeadAttention", inputs, attributes, domain=MICROSOFT, num_outputs=outputs)

"""Softmax attention, in whatever spelling, becomes one kernel that moves no heads around."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import need
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention import mask
from ortopt.patterns.attention.block import Attention, attention
from ortopt.patterns.attention.emission import has_standard_op, operands, replacements
from ortopt.rule import RewriteRule


class AttentionFusion(RewriteRule[Attention]):
    """``Softmax(scale · q · kᵀ + mask) · v``, with heads split and joined → ``Attention(q, k, v, mask, past)``.

    The standard operator where the opset has it and no dimension can be 0, which its kernel refuses; else ONNX
    Runtime's MultiHeadAttention, if as many heads read as are read and no row can be masked as a whole.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("opset_conversion", "constant_folding", "rotary_embedding_fusion", "group_query_attention_fusion")
    roots = ("MatMul",)
    lookback = 12
    looks_downstream = True
    produces = (("com.microsoft", "MultiHeadAttention"),)
    fuses = (("", "Attention"), *produces)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Attention:
        """The block, if there is an op for it."""
        block = attention(root)
        if has_standard_op(block):
            return block
        if not block.flat or block.keys.count != block.queries.count:
            block = block.as_read()
        _check_own_op(block)
        return block

    def rewrite(self, found: Attention) -> dict[ir.Value, ir.Value]:
        """Build the attention: on values that are not split into heads where there are such ones."""
        node = _standard(found) if has_standard_op(found) else _multi_head(found)
        return replacements(found, node.outputs)


def _check_own_op(block: Attention) -> None:
    """Refuse where MultiHeadAttention would not compute the same."""
    root = block.core[0]
    need(block.joined is not None, "MultiHeadAttention gives heads side by side, which nothing asks for", root)
    if block.keys_first:
        alike = block.keys.size == block.values.size
        need(alike, "MultiHeadAttention wants keys and values with heads of one size", root)
    infinite = block.guarded and any(mask.depth(bias) is mask.Depth.UNKNOWN for bias in block.biases)
    need(not infinite, "MultiHeadAttention gives NaN where a row is masked as a whole, and the original gives 0", root)


def _standard(block: Attention) -> ir.Node:
    attributes: dict[str, float | int] = {"scale": block.scale}
    if block.flat:
        attributes |= {"q_num_heads": block.queries.count, "kv_num_heads": block.keys.count}
    query, key, value = operands(block)
    bias: ir.Value | None = None
    if block.biases:
        total = mask.lifted(block.biases, guarded=block.guarded)
        bias = mask.for_each_query(total, block.biases, block.scores, query, axis=1 if block.flat else 2)
    if block.past is None:
        return ir.node("Attention", [query, key, value, *([bias] if block.biases else [])], attributes)
    inputs = [query, key, value, bias, block.past.key, block.past.value]
    return ir.node("Attention", inputs, attributes, num_outputs=3)


def _multi_head(block: Attention) -> ir.Node:
    attributes = {"num_heads": block.queries.count, "scale": block.scale}
    if block.keys_first:
        query, key, value = block.queries.merged(), block.keys.heads_first(), block.values.heads_first()
    else:
        query, key, value = operands(block)
    inputs: list[ir.Value | None] = [query, key, value]
    if block.biases:
        total = mask.total(block.biases)
        bias = mask.for_each_query(total, block.biases, block.scores, query, axis=1)
        inputs += [None, None, mask.of_rank_4(bias, block.biases)]
    if block.past is not None:
        inputs += [None] * (6 - len(inputs)) + [block.past.key, block.past.value]
    outputs = 1 if block.past is None else 3
    return ir.node("MultiHeadAttention", inputs, attributes, domain="com.microsoft", num_outputs=outputs)

"""Softmax attention, in whatever spelling, becomes one kernel that moves no heads around."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention import mask
from ortopt.patterns.attention.block import Attention, attention, check_sizes_are_positive
from ortopt.rule import RewriteRule

STANDARD_FROM = 23
"""The version of ai.onnx that has Attention."""


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
        if _has_standard_op(block):
            return block
        if not block.flat or block.keys.count != block.queries.count:
            block = block.as_read()
        _check_own_op(block)
        return block

    def rewrite(self, found: Attention) -> dict[ir.Value, ir.Value]:
        """Build the attention: on values that are not split into heads where there are such ones."""
        node = _standard(found) if _has_standard_op(found) else _multi_head(found)
        result, *presents = node.outputs
        if not found.flat:
            replaced = {found.context: result}
        elif found.merged is not None:
            replaced = {found.merged: result}
        else:
            assert found.joined is not None
            split = constant([0, 0, found.queries.count, found.values.size])
            replaced = {found.joined: ir.node("Reshape", [result, split]).outputs[0]}
        if found.past is not None:
            replaced |= dict(zip((found.past.present_key, found.past.present_value), presents, strict=True))
        return replaced


def _has_standard_op(block: Attention) -> bool:
    """Whether ai.onnx has an op for the block, whose kernel runs wherever the block does."""
    if block.keys_first or opset(block.core[0]) < STANDARD_FROM:
        return False
    try:
        check_sizes_are_positive(block)
    except Refusal:
        return False
    return True


def _check_own_op(block: Attention) -> None:
    """Refuse where MultiHeadAttention would not compute the same."""
    root = block.core[0]
    need(block.joined is not None, "MultiHeadAttention gives heads side by side, which nothing asks for", root)
    if block.keys_first or block.past is not None:
        alike = block.keys.size == block.values.size
        need(alike, "MultiHeadAttention wants keys and values with heads of one size", root)
    infinite = block.guarded and any(mask.depth(bias) is mask.Depth.UNKNOWN for bias in block.biases)
    need(not infinite, "MultiHeadAttention gives NaN where a row is masked as a whole, and the original gives 0", root)


def _standard(block: Attention) -> ir.Node:
    attributes: dict[str, float | int] = {"scale": block.scale}
    if block.flat:
        attributes |= {"q_num_heads": block.queries.count, "kv_num_heads": block.keys.count}
    query, key, value = _operands(block)
    bias: ir.Value | None = None
    if block.biases:
        total = mask.lifted(block.biases, guarded=block.guarded)
        bias = mask.for_each_query(total, block.biases, block.scores, query, axis=1 if block.flat else 2)
    if block.past is None:
        return ir.node("Attention", [query, key, value, *([bias] if block.biases else [])], attributes)
    operands = [query, key, value, bias, block.past.key, block.past.value]
    return ir.node("Attention", operands, attributes, num_outputs=3)


def _multi_head(block: Attention) -> ir.Node:
    attributes = {"num_heads": block.queries.count, "scale": block.scale}
    if block.keys_first:
        query, key, value = block.queries.merged(), block.keys.heads_first(), block.values.heads_first()
    else:
        query, key, value = _operands(block)
    operands: list[ir.Value | None] = [query, key, value]
    if block.biases:
        total = mask.total(block.biases)
        bias = mask.for_each_query(total, block.biases, block.scores, query, axis=1)
        operands += [None, None, mask.of_rank_4(bias, block.biases)]
    if block.past is not None:
        operands += [None] * (6 - len(operands)) + [block.past.key, block.past.value]
    outputs = 1 if block.past is None else 3
    return ir.node("MultiHeadAttention", operands, attributes, domain="com.microsoft", num_outputs=outputs)


def _operands(block: Attention) -> list[ir.Value]:
    heads = (block.queries, block.keys, block.values)
    return [part.merged() if block.flat else part.heads_first() for part in heads]

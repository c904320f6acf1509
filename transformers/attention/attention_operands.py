"""Ops of attention do what computes their queries, keys and values: projections, Splits, and rotary embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used,
    is_used_once,
    need,
    need_known,
    optional,
    plain_attributes,
    producer,
    same_dim,
    small_array,
)
from ortopt.linear.layer import Linear, biased, linear
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

KEPT = ("mask_filter_value", "num_heads", "scale", "unidirectional")
"""Attributes that mean the same in MultiHeadAttention and in Attention."""

PAST, COSINES, POSITIONS = 3, 7, 9
"""Inputs of GroupQueryAttention; the sines follow the cosines."""


class PackedAttentionFusion(RewriteRule[Match]):
    """``MultiHeadAttention(x·q + a, x·k + b, x·v + c)`` → ``com.microsoft.Attention(x, [q|k|v], [a|b|c])``.

    The weights must be constants, and they are stored in another order. The pass does nothing if the opset has the
    standard Attention, which is as fast.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("attention_fusion", "matmul_reassociation", "scale_folding")
    roots = (f"{MICROSOFT}::MultiHeadAttention",)
    lookback = 4
    produces = ((MICROSOFT, "Attention"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """An attention whose queries, keys and values are projections of one value."""
        values = inputs(root, 3)
        for position, what in ((4, "a mask of keys"), (6, "a past"), (7, "a past"), (9, "a cache")):
            need(optional(root, position) is None, f"it has {what}", root)
        need(not any(map(is_used, root.outputs[1:])), "its keys and values are used elsewhere", root)
        split = _split_into(values)
        projections = [_projection(value) for value in (values if split is None else inputs(split, 1))]
        alike = all(projection.x is projections[0].x for projection in projections)
        need(alike, "queries, keys and values are projections of different values", values[1])
        sizes = [dims(value, 3)[2] for value in values] if split else [one.outputs for one in projections]
        known = [size for size in sizes if isinstance(size, int)]
        need(len(known) == len(sizes), "the parts have no known sizes", root)
        need(known[0] == known[1], "queries and keys have heads of different sizes", values[1])
        bias = optional(root, 3)
        if bias is not None:
            need(is_constant(bias) and dims(bias) == (sum(known),), "its bias is not a constant row", bias)
        nodes = [node for projection in projections for node in projection.nodes]
        return Match((*nodes, *([split] if split else []), root), lambda: _packed_attention(root, projections, known))


class GroupQueryOperandFolding(RewriteRule[Match]):
    """``GroupQueryAttention(RotaryEmbedding(q), RotaryEmbedding(k), v)``, ``GroupQueryAttention(Split(qkv))`` → one op.

    The rotary embedding is folded only if there is no past: then positions count from 0, and the tables have a row for
    each.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("group_query_attention_fusion", "rotary_embedding_fusion")
    roots = (f"{MICROSOFT}::GroupQueryAttention",)
    lookback = 3
    produces = ((MICROSOFT, "GroupQueryAttention"),)
    fuses = ()
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Embeddings or parts of one value as operands."""
        query = root.inputs[0]
        if query is None or not is_op(query.producer(), "Split"):
            return _embedded(root)
        split = need_known(
            _split_into(inputs(root, 3)), "queries, keys and values are not the parts of one value", root
        )
        return Match((split, root), lambda: _of_operands(root, [split.inputs[0], None, None, *root.inputs[3:]]))


def _split_into(values: Sequence[ir.Value]) -> ir.Node | None:
    """The Split in the last of three dimensions that gives some values, in this order, alone; None if none does."""
    split = values[0].producer()
    if not is_op(split, "Split") or tuple(split.outputs) != tuple(values):
        return None
    need(ops.Split(split).axis == 2, "they are not parts in the last dimension", split)
    need(all(map(is_used_once, values)), "a part is used elsewhere", split)
    return split


def _projection(value: ir.Value) -> Linear:
    """The product of a value with three dimensions and a constant matrix, and the constant row that is added.

    Raises:
        Refusal: If it is no such product.
    """
    node = value.producer()
    if not is_op(node, "Add", "MatMul"):
        raise Refusal("queries, keys or values are not a projection", value)
    need(is_used_once(value), "the projection is used elsewhere", value)
    layer = biased(node) if is_op(node, "Add") else linear(node)
    dims(layer.x, 3)
    if layer.bias is not None:
        need(is_constant(layer.bias), "what is added to a projection is not a constant", value)
        own = dims(layer.bias)
        row = own[-1:] == (layer.outputs,) and set(own[:-1]) <= {1} and len(own) <= 3
        need(row, "the bias is no row", layer.bias)
    return layer


def _packed_attention(root: ir.Node, projections: Sequence[Linear], sizes: Sequence[int]) -> ir.Node:
    """The attention that projects: weights and biases are put side by side."""
    first, mask = projections[0], optional(root, 5)
    weights = [array_of(projection.weight) for projection in projections]
    weight = first.weight if len(weights) == 1 else constant(np.concatenate(weights, axis=1))
    attributes = {name: given.value for name, given in plain_attributes(root).items() if name in KEPT}
    if len(set(sizes)) > 1:
        attributes["qkv_hidden_sizes"] = list(sizes)
    operands: list[ir.Value | None] = [first.x, weight, _bias(projections, optional(root, 3))]
    if mask is not None:
        operands.extend((None, None, mask))
    return ir.node("Attention", operands, attributes, domain=MICROSOFT)


def _bias(projections: Sequence[Linear], own: ir.Value | None) -> ir.Value:
    """What is added to all projections, and by the attention: the kernel wants something even where it is nothing."""
    only = projections[0].bias
    if len(projections) == 1 and own is None and only is not None and len(dims(only)) == 1:
        return only
    total = np.concatenate(
        [
            np.zeros(one.outputs, array_of(one.weight).dtype) if one.bias is None else array_of(one.bias).reshape(-1)
            for one in projections
        ]
    )
    return constant(total if own is None else total + array_of(own).reshape(-1))


def _embedded(root: ir.Node) -> Match:
    """Queries and keys with the same embedding.

    Raises:
        Refusal: If they have none, or the kernel's is another.
    """
    query, key, _ = inputs(root, 3)
    embeddings = [producer(value, "RotaryEmbedding", domain=MICROSOFT) for value in (query, key)]
    need(not attribute(root, "do_rotary", 0), "it has an embedding", root)
    need(all(map(is_used_once, (query, key))), "an embedding is used elsewhere", root)
    need(optional(root, PAST) is None, "positions behind a past do not count from 0", root)
    first, second = (embedding.inputs for embedding in embeddings)
    need(all(a is b for a, b in zip(first[1:], second[1:], strict=True)), "queries and keys have other tables", root)
    x, positions, cosines, _ = inputs(embeddings[0], 4)
    start = is_constant(positions) and small_array(positions).tolist() == [0]
    need(start, "the positions do not count from 0", positions)
    for embedding, name in zip(embeddings, ("num_heads", "kv_num_heads"), strict=True):
        _check_kernel(embedding, attribute(root, name, 0))
    rows, width = dims(cosines, 2)
    need(same_dim(rows, dims(x, 3)[1]), "the tables have no row for each position", cosines)
    hidden, heads = dims(query, 3)[2], attribute(root, "num_heads", 1)
    size = hidden // heads if isinstance(hidden, int) else 1
    fits = isinstance(width, int) and width % 8 == 0 and size % 16 == 0 and width <= size // 2
    need(fits, "the kernel's embedding is of heads in steps of 16", cosines)
    interleaved, other = (attribute(one, "interleaved", 0) for one in embeddings)
    need(interleaved == other, "queries and keys are interleaved differently", root)
    operands = [*root.inputs, *[None] * (POSITIONS - len(root.inputs))]
    operands[:2] = [first[0], second[0]]
    operands[COSINES:POSITIONS] = first[2:4]
    return Match((*embeddings, root), lambda: _of_operands(root, operands, do_rotary=1, rotary_interleaved=interleaved))


def _check_kernel(embedding: ir.Node, heads: int) -> None:
    """Refuse an embedding of other heads, or one that does more."""
    rank = len(dims(embedding.inputs[0])) if embedding.inputs[0] is not None else 0
    need(rank == 3, "the heads are not side by side", embedding)
    plain = attribute(embedding, "scale", 1.0) == 1.0 and not attribute(embedding, "is_packed_batching", 0)
    need(plain, "the embedding scales or packs", embedding)
    partial = attribute(embedding, "rotary_embedding_dim", 0)
    same = attribute(embedding, "num_heads", 0) in ({heads} if partial else {heads, 0})
    need(same, "the embedding is of other heads", embedding)


def _of_operands(root: ir.Node, operands: Sequence[ir.Value | None], **settings: int) -> ir.Node:
    """An attention of other operands, with all of its results.

    Args:
        root: The attention.
        operands: Its new operands.
        settings: Attributes that differ.
    """
    attributes = ops.changed(root.attributes.values(), **settings)
    return ir.Node(root.domain, root.op_type, operands, attributes, num_outputs=len(root.outputs))

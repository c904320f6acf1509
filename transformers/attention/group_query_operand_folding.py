"""GroupQueryAttention turns queries and keys itself, and takes them apart itself: two kernels and two copies less."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import (
    Refusal,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    optional,
    plain_attributes,
    producer,
    same_dim,
    small_array,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT

PAST, COSINES, POSITIONS = 3, 7, 9


class Found(Struct, frozen=True):
    """The nodes that go, and what is different of the new one.

    Attributes:
        nodes: The embeddings or the Split, and the attention.
        operands: All operands of the new attention.
        attributes: Attributes that it gets.
    """

    nodes: tuple[ir.Node, ...]
    operands: list[ir.Value | None]
    attributes: dict[str, int]


class GroupQueryOperandFolding(RewriteRule[Found]):
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

    def match(self, root: ir.Node) -> Found:
        """Embeddings or parts of one value as operands."""
        query = root.inputs[0]
        if query is not None and is_op(query.producer(), "Split"):
            return _split(root)
        return _embedded(root)

    def rewrite(self, found: Found) -> ir.Node:
        """The attention with what was before it."""
        root = found.nodes[-1]
        attributes = {name: given.value for name, given in plain_attributes(root).items()} | found.attributes
        return ir.node(root.op_type, found.operands, attributes, domain=MICROSOFT, num_outputs=len(root.outputs))


def _embedded(root: ir.Node) -> Found:
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
    alike = all(attribute(one, "interleaved", 0) == attribute(embeddings[0], "interleaved", 0) for one in embeddings)
    need(alike, "queries and keys are interleaved differently", root)
    operands = [*root.inputs, *[None] * (COSINES + 2 - len(root.inputs))]
    operands[:2] = [first[0], second[0]]
    operands[COSINES : COSINES + 2] = first[2:4]
    interleaved = attribute(embeddings[0], "interleaved", 0)
    return Found((*embeddings, root), operands, {"do_rotary": 1, "rotary_interleaved": interleaved})


def _check_kernel(embedding: ir.Node, heads: int) -> None:
    """Refuse an embedding of other heads, or one that does more."""
    rank = len(dims(embedding.inputs[0])) if embedding.inputs[0] is not None else 0
    need(rank == 3, "the heads are not side by side", embedding)
    plain = attribute(embedding, "scale", 1.0) == 1.0 and not attribute(embedding, "is_packed_batching", 0)
    need(plain, "the embedding scales or packs", embedding)
    partial = attribute(embedding, "rotary_embedding_dim", 0)
    same = attribute(embedding, "num_heads", 0) in ({heads} if partial else {heads, 0})
    need(same, "the embedding is of other heads", embedding)


def _split(root: ir.Node) -> Found:
    """Queries, keys and values as the parts of one value.

    Raises:
        Refusal: If they are not, in this order.
    """
    parts = inputs(root, 3)
    split = parts[0].producer()
    assert split is not None
    if len(split.outputs) != 3 or any(a is not b for a, b in zip(split.outputs, parts, strict=True)):
        raise Refusal("queries, keys and values are not the parts of one value", root)
    need(ops.Split(split).axis == 2, "they are not parts in the last dimension", split)
    need(all(map(is_used_once, parts)), "a part is used elsewhere", root)
    return Found((split, root), [split.inputs[0], None, None, *root.inputs[3:]], {})

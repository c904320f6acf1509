"""Attention, rotary embedding, normalizations and recurrent ops, of the standard and of com.microsoft."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, Unknown, axis_of, rule
from ortopt.graph import symbolic
from ortopt.graph.facts import Dims
from ortopt.graph.symbolic import UNKNOWN, Dim
from ortopt.semantics.domains import MICROSOFT


def _total(call: Call, index: int, axis: int, new: Dim) -> Dim:
    """How many keys there are, with those of the past, which is an input and has them along an axis."""
    if not call.has(index):
        return new
    past = call.dims_or_none(index)
    return UNKNOWN if past is None else symbolic.add(past[axis], new)


@rule("Attention")
def attention(call: Call) -> None:
    """Y as Q with V's head size, the present keys and values, the scores."""
    dtype = call.dtype(0)
    call.share_type(0)
    q, k, v = call.dims(0), call.dims(1), call.dims(2)
    if len(q) == 4:
        heads, kv_heads = q[1], k[1]
        size, key_size, value_size = q[2], k[3], v[3]
        new = k[2]
        call.shapes[0] = (q[0], q[1], size, value_size)
    elif len(q) == 3:
        heads, kv_heads = call.attribute("q_num_heads"), call.attribute("kv_num_heads")
        size, new = q[1], k[1]
        key_size, value_size = symbolic.floordiv(k[2], kv_heads), symbolic.floordiv(v[2], kv_heads)
        call.shapes[0] = (q[0], size, symbolic.mul(heads, value_size))
    else:
        raise Unknown
    total = _total(call, 4, 2, new)
    call.set(1, dtype, (q[0], kv_heads, total, key_size))
    call.set(2, dtype, (q[0], kv_heads, total, value_size))
    call.set(3, dtype, (q[0], heads, size, total))


@rule("Attention", domain=MICROSOFT)
def contrib_attention(call: Call) -> None:
    """[batch, sequence, V's hidden size]; the present is [2, batch, heads, total, head size]."""
    dtype = call.dtype(0)
    call.types[0] = dtype
    call.set(1, dtype)
    batch, sequence, _ = call.dims(0)
    call.shapes[0] = (batch, sequence, UNKNOWN)
    weights = call.dims(1)
    heads = call.attribute("num_heads")
    sizes = call.attribute("qkv_hidden_sizes")
    hidden = sizes[2] if sizes else symbolic.floordiv(weights[1], 3)
    call.shapes[0] = (batch, sequence, hidden)
    shares = call.attribute("past_present_share_buffer", 0)
    total = _total(call, 4, 3, 0 if shares else sequence) if call.has(4) or not shares else UNKNOWN
    call.set(1, dtype, (2, batch, heads, total, symbolic.floordiv(hidden, heads)))


@rule("QAttention", domain=MICROSOFT, typed=3)
def quantized_attention(call: Call) -> None:
    """As Attention, in the type of the scale."""
    batch, sequence, _ = call.dims(0)
    call.shapes[0] = (batch, sequence, symbolic.floordiv(call.dims(1)[1], 3))


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(call: Call) -> None:
    """[batch, sequence, V's hidden size]; the presents are [batch, heads, total, head size]."""
    call.share_type(0)
    query = call.dims(0)
    heads = call.attribute("num_heads")
    if len(query) == 5:  # packed [batch, sequence, heads, 3, head size]
        size = query[4]
        _present(call, (query[0], heads, query[1], size), size)
        call.shapes[0] = (query[0], query[1], symbolic.mul(heads, size))
        return
    batch, sequence, _ = query
    call.shapes[0] = (batch, sequence, UNKNOWN)
    key = call.dims_or_none(1)
    value = call.dims_or_none(2)
    if key is not None and len(key) == 5 and not call.has(2):  # packed [batch, sequence, heads, 2, head size]
        _present(call, (batch, heads, key[1], key[4]), key[4])
        call.shapes[0] = (batch, sequence, symbolic.mul(heads, key[4]))
    elif key is not None and value is not None and len(value) == 4:  # [batch, heads, sequence, head size]
        _present(call, (batch, heads, key[2], key[3]), value[3])
        call.shapes[0] = (batch, sequence, symbolic.mul(heads, value[3]))
    elif key is not None and value is not None and len(value) == 3:
        size = symbolic.floordiv(key[2], heads)
        _present(call, (batch, heads, key[1], size), symbolic.floordiv(value[2], heads))
        call.shapes[0] = (batch, sequence, value[2])


def _present(call: Call, key: Dims, value_size: Dim) -> None:
    batch, heads, new, key_size = key
    # With cached indirection or shared buffers the past's length counts.
    total = UNKNOWN if call.has(8) else _total(call, 6, 2, new)
    call.set(1, call.dtype(0), (batch, heads, total, key_size))
    call.set(2, call.dtype(0), (batch, heads, total, value_size))


@rule("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(call: Call) -> None:
    """[batch, sequence, heads * head size]; the presents are [batch, key heads, data dependent, head size]."""
    call.share_type(0)
    batch, sequence, hidden = call.dims(0)
    heads, kv_heads = call.attribute("num_heads"), call.attribute("kv_num_heads")
    if call.has(2):
        size = symbolic.floordiv(hidden, heads)
        call.shapes[0] = (batch, sequence, hidden)
    else:  # packed
        size = symbolic.floordiv(hidden, heads + 2 * kv_heads)
        call.shapes[0] = (batch, sequence, symbolic.mul(size, heads))
    # The present's length is a number in the seventh input, or the past's where that is larger.
    for index in (1, 2):
        call.set(index, call.dtype(0), (batch, kv_heads, UNKNOWN, size))


@rule("PackedAttention", "PackedMultiHeadAttention", "DecoderMaskedMultiHeadAttention", domain=MICROSOFT, typed=0)
def other_attention(call: Call) -> None:
    """Only the type is known."""


FLOAT = ir.DataType.FLOAT


@rule("BatchNormalization")
def batch_normalization(call: Call) -> None:
    """As the input; what training returns besides has the shape and type of the statistics."""
    call.same(0, 0)
    for index in range(1, call.output_count()):
        call.same(index, min(index + 2, 4) if call.version >= 14 else 3)


@rule("SimplifiedLayerNormalization", domain=MICROSOFT)
@rule("SimplifiedLayerNormalization")  # ONNX Runtime registers it in the standard domain, too
def simplified_layer_normalization(call: Call) -> None:
    """As that with a mean, and of the scale's type."""
    layer_normalization(call)
    call.types[0] = call.dtype(1)


@rule("LayerNormalization", domain=MICROSOFT)
@rule("LayerNormalization")
def layer_normalization(call: Call) -> None:
    """As the input; mean and inverse deviation have 1 from the axis on."""
    call.same(0, 0)
    others = call.output_count() - 1
    if not others:
        return
    call.types[1:] = [ir.DataType(call.attribute("stash_type", 1))] * others
    dims = call.dims(0)
    axis = axis_of(call.attribute("axis", -1), len(dims))
    call.shapes[1:] = [dims[:axis] + (1,) * (len(dims) - axis)] * others


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(call: Call) -> None:
    """As the input; mean and inverse deviation have 1 at the end; the fourth output is the sum."""
    call.same(0, 0)
    call.same(3, 0)
    dims = call.dims_or_none(0)
    for index in (1, 2):
        call.set(index, FLOAT, None if dims is None else (*dims[:-1], 1))


@rule("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def group_norm(call: Call) -> None:
    """As the input; the skipping one returns the sum too."""
    call.same(0, 0)
    call.same(1, 0)


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(call: Call) -> None:
    """[batch, sequence, hidden], the mask's row sums, the embeddings' sum."""
    dtype = call.dtype(2)
    call.set(0, dtype)
    call.set(1, ir.DataType.INT32)
    call.set(2, dtype)
    batch, sequence = call.dims(0)
    hidden = call.dims(2)[-1]
    call.set(0, dtype, (batch, sequence, hidden))
    call.set(1, ir.DataType.INT32, (batch,))
    call.set(2, dtype, (batch, sequence, hidden))


@rule("RNN", "GRU", "LSTM")
@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def recurrent(call: Call) -> None:
    """All hidden states [sequence, directions, batch, hidden], the last ones, and LSTM's last cells."""
    call.share_type(0)
    direction = call.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    hidden: Dim | None = call.attribute("hidden_size")
    if hidden is None:
        recurrence = call.dims_or_none(2)
        hidden = UNKNOWN if recurrence is None else recurrence[-1]
    x = call.dims_or_none(0) or (UNKNOWN,) * 3
    if len(x) != 3:
        raise Unknown
    batch_first = call.attribute("layout", 0)
    every: Dims = (*x[:2], directions, hidden) if batch_first else (x[0], directions, x[1], hidden)
    last: Dims = (x[0], directions, hidden) if batch_first else (directions, x[1], hidden)
    for index in range(call.output_count()):
        call.shapes[index] = last if index else every

"""Calls of normalizations, quantization, recurrent layers, attention and signals."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzzing.calls.draw import MICROSOFT, NEWEST, Array, Draw, Drawn, drawing


def _positive(d: Draw, shape: tuple[int, ...], dtype: str = "float") -> Array:
    return np.abs(d.tensor(dtype, shape)) + np.array(0.5, d.tensor(dtype, ()).dtype)  # type: ignore[no-any-return]


@drawing("InstanceNormalization")
def instance_normalization(d: Draw) -> Drawn:
    """Scale and bias for each channel."""
    shape = d.shape(3, 4)
    return d.call([d.tensor("float", shape), *(d.tensor("float", shape[1:2]) for _ in range(2))])


@drawing("GroupNormalization")
def group_normalization(d: Draw) -> Drawn:
    """Scale and bias for each group before opset 21, for each channel since."""
    shape, groups = list(d.shape(3, 4, zero=False)), d.one(1, 2)
    shape[1] *= groups
    size = (groups,) if d.opset < 21 else (shape[1],)
    return d.call([d.tensor("float", shape), *(d.tensor("float", size) for _ in range(2))], num_groups=groups)


@drawing("RMSNormalization")
def rms_normalization(d: Draw) -> Drawn:
    """From an axis on."""
    shape = d.shape(1, 4)
    axis = d.axis(len(shape))
    scale = shape[axis:] if -len(shape) <= axis < len(shape) else (1,)
    return d.call([d.tensor("float", shape), d.tensor("float", scale)], axis=axis)


@drawing("BatchNormalization")
def batch_normalization(d: Draw) -> Drawn:
    """Statistics for each channel; in training mode they are results too."""
    shape = d.shape(2, 4)
    inputs = [d.tensor("float", shape), *(_positive(d, shape[1:2]) for _ in range(4))]
    if d.opset >= 14 and d.chance(0.3):
        return d.call(inputs, 3, training_mode=1)
    return d.call(inputs, is_test=1 if d.opset < 7 else None)


def _with_scale(d: Draw, *, shift: bool, outputs: int) -> Drawn:
    shape = d.shape(1, 4)
    axis = d.axis(len(shape)) if d.chance(0.7) else None
    along = -1 if axis is None else axis
    scale = shape[along:] if -len(shape) <= along < len(shape) else (1,)
    dtype = d.one("float", "float", "double")
    inputs = [d.tensor(dtype, one) for one in ((shape, scale, scale) if shift else (shape, scale))]
    return d.call(inputs, d.number(1, outputs), axis=axis, stash_type=d.one(None, 1))


@drawing("LayerNormalization")
@drawing("LayerNormalization", domain=MICROSOFT)
def layer_normalization(d: Draw) -> Drawn:
    """From an axis on; mean and deviation."""
    return _with_scale(d, shift=d.chance(0.5), outputs=3)


@drawing("SimplifiedLayerNormalization")
@drawing("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(d: Draw) -> Drawn:
    """From an axis on; the deviation."""
    return _with_scale(d, shift=False, outputs=2)


@drawing("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(d: Draw) -> Drawn:
    """The fourth result is the sum."""
    shape = d.shape(2, 3)
    skip = shape[1:] if len(shape) == 3 and d.chance(0.2) else shape
    if len(shape) == 3 and d.chance(0.2):
        skip = (1, *shape[1:])
    more = [d.tensor("float", shape[-1:]) for _ in range(d.number(0, 1))]
    result = d.call(
        [d.tensor("float", shape), d.tensor("float", skip), d.tensor("float", shape[-1:]), *more], d.one(1, 4)
    )
    if len(result.nodes[0].output) == 4:
        result.nodes[0].output[1] = result.nodes[0].output[2] = ""
    return result


@drawing("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(d: Draw) -> Drawn:
    """Embeddings looked up and summed."""
    batch, sequence, hidden = d.size(), d.number(1, 4), d.number(1, 4)
    words = np.zeros((batch, sequence), np.int32)
    table = d.tensor("float", (8, hidden))
    vector = d.tensor("float", (hidden,))
    mask = np.ones((batch, sequence), np.int32) if d.chance(0.5) else None
    return d.call([words, None, table, table, None, vector, vector, mask], d.number(1, 3))


@drawing("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def group_norm(d: Draw) -> Drawn:
    """Channels last."""
    shape = (d.size(), d.size(), d.size(), 4)
    vector = d.tensor("float", (4,))
    skip = [d.tensor("float", shape)] if d.op == "SkipGroupNorm" else []
    return d.call([d.tensor("float", shape), vector, vector, *skip], groups=2, activation=0)


@drawing("Gelu", "FastGelu", "QuickGelu", "BiasGelu", "BiasDropout", domain=MICROSOFT)
def activation(d: Draw) -> Drawn:
    """With a bias or without."""
    shape = d.shape(1, 4)
    bias = d.op in ("BiasGelu", "BiasDropout") or (d.op == "FastGelu" and d.chance(0.5))
    return d.call([d.tensor("float", shape)] + ([d.tensor("float", shape[-1:])] if bias else []))


@drawing("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(d: Draw) -> Drawn:
    """Along an axis."""
    shape = d.shape(2, 3)
    return d.call([d.tensor("float", shape), d.tensor("float", shape)], axis=1, is_inner_broadcast=1)


# Quantization


def _scales(d: Draw, shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """For the whole tensor, for each slice along an axis, for each block."""
    axis = d.number(-len(shape), len(shape) - 1) if shape else 0
    if shape and d.opset >= 21 and d.chance(0.3):
        block = d.one(1, 2, 3)
        sizes = list(shape)
        sizes[axis] = -(-shape[axis] // block)
        return tuple(sizes), {"axis": axis, "block_size": block}
    if shape and d.opset >= 13 and d.chance(0.5):
        return (shape[axis],), {"axis": axis}
    return d.one((), (1,)), {}


@drawing("QuantizeLinear")
def quantize_linear(d: Draw) -> Drawn:
    """To the zero point's dtype, or to the attribute's."""
    shape = d.shape(0, 3)
    sizes, given = _scales(d, shape)
    kind = d.one("uint8", "int8", *(("uint16", "int16", "int4", "float8e4m3fn") if d.opset >= 21 else ()))
    zero = np.zeros(sizes, d.tensor(kind, ()).dtype) if d.chance(0.6) else None
    if zero is None and d.opset >= 21 and d.chance(0.6):
        given["output_dtype"] = d.one(2, 3, 4, 5)
    return d.call([d.tensor("float", shape), _positive(d, sizes), zero], **given)


@drawing("DequantizeLinear")
def dequantize_linear(d: Draw) -> Drawn:
    """From bytes to the scale's dtype."""
    shape = d.shape(0, 3)
    sizes, given = _scales(d, shape)
    kind = d.one("uint8", "int8", *(("uint16", "int16", "int4") if d.opset >= 21 else ()))
    zero = np.zeros(sizes, d.tensor(kind, ()).dtype) if d.chance(0.6) else None
    scale = d.one("float", "float16") if d.opset >= 19 else "float"
    return d.call([d.tensor(kind, shape), _positive(d, sizes, scale), zero], **given)


@drawing("QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
def contrib_quantize(d: Draw) -> Drawn:
    """Without blocks."""
    shape, kind = d.shape(1, 3), d.one("uint8", "int8", "int16")
    given = {}
    sizes: tuple[int, ...] = ()
    if d.chance(0.5):
        given["axis"] = d.number(0, len(shape) - 1)
        sizes = (shape[given["axis"]],)
    x = d.tensor("float" if d.op == "QuantizeLinear" else kind, shape)
    return d.call([x, _positive(d, sizes), np.zeros(sizes, kind)], **given)


@drawing("DynamicQuantizeLinear")
def dynamic_quantize(d: Draw) -> Drawn:
    """Three results."""
    return d.call([d.tensor("float", d.shape())], 3)


def _quantized(d: Draw, shape: tuple[int, ...]) -> list[Array]:
    return [d.tensor("uint8", shape), np.array(0.5, np.float32), np.array(1, np.uint8)]


@drawing("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def quantized_arithmetic(d: Draw) -> Drawn:
    """Operands that broadcast."""
    shape = d.shape()
    return d.call([*_quantized(d, shape), *_quantized(d, d.broadcast(shape)), *_quantized(d, ())[1:]])


@drawing("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=MICROSOFT)
def quantized_activation(d: Draw) -> Drawn:
    """Of one operand."""
    shape = d.shape(1, 3, zero=False)
    given = {"axis": d.axis(len(shape)), "opset": d.one(11, 13)} if d.op == "QLinearSoftmax" else {}
    return d.call([*_quantized(d, shape), *_quantized(d, ())[1:]], **given)


@drawing("QLinearConcat", domain=MICROSOFT)
def quantized_concat(d: Draw) -> Drawn:
    """Threes of tensor, scale and zero point."""
    shape = list(d.shape(1, 3))
    axis, parts = d.axis(len(shape)), []
    for _ in range(d.number(1, 3)):
        if -len(shape) <= axis < len(shape):
            shape[axis] = d.size()
        parts += _quantized(d, tuple(shape))
    return d.call([*_quantized(d, ())[1:], *parts], axis=axis)


@drawing("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(d: Draw) -> Drawn:
    """Rows of bytes that hold one integer or two."""
    rows, bits, blocks = d.number(1, 5), d.one(4, 8), d.number(1, 3)
    data = d.tensor("uint8", (rows, blocks * 16 * bits // 8))
    indices = d.ints([d.number(-rows, rows - 1) for _ in range(6)]).reshape(d.one((6,), (2, 3), (1, 6, 1)))
    scale = _positive(d, (rows, blocks), d.one("float", "float16"))
    return d.call([data, indices, scale], block_size=16, quantize_axis=1, bits=bits, gather_axis=d.one(0, -2))


# Recurrent layers


@drawing("RNN", "GRU", "LSTM")
def recurrent(d: Draw) -> Drawn:
    """Directions and layouts."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[d.op]
    direction = d.one(None, "forward", "reverse", "bidirectional")
    directions = 2 if direction == "bidirectional" else 1
    s, b, i, h = d.number(1, 4), d.size(zero=False), d.number(1, 3), d.number(1, 3)
    layout = d.one(None, 0, 1) if d.opset >= 14 else None
    x = d.tensor("float", (b, s, i) if layout else (s, b, i))
    weights = [d.tensor("float", (directions, gates * h, size)) for size in (i, h)]
    bias = d.tensor("float", (directions, 2 * gates * h)) if d.chance(0.4) else None
    lengths = np.array([d.number(0, s) for _ in range(b)], np.int32) if d.chance(0.3) else None
    return d.call(
        [x, *weights, bias, lengths],
        d.number(1, 3 if d.op == "LSTM" else 2),
        hidden_size=h,
        direction=direction,
        layout=layout,
    )


@drawing("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantized_lstm(d: Draw) -> Drawn:
    """Weights in bytes, the other way round."""
    s, b, i, h = d.number(1, 4), d.size(zero=False), d.number(1, 3), d.number(1, 3)
    weights = [d.tensor("uint8", (1, size, 4 * h)) for size in (i, h)]
    scale, zero = np.array([0.5], np.float32), np.array([1], np.uint8)
    inputs = [d.tensor("float", (s, b, i)), *weights, None, None, None, None, None, scale, zero, scale, zero]
    return d.call(inputs, 3, hidden_size=h)


# Attention


@drawing("RotaryEmbedding")
def rotary_embedding(d: Draw) -> Drawn:
    """Of three and four dimensions."""
    b, s, heads, size = d.number(1, 2), d.number(1, 3), d.number(1, 2), d.one(2, 4)
    tables = [d.tensor("float", (8, size // 2)) for _ in range(2)]
    places = np.zeros((b, s), np.int64)
    if d.chance(0.5):
        return d.call([d.tensor("float", (b, heads, s, size)), *tables, places])
    return d.call([d.tensor("float", (b, s, heads * size)), *tables, places], num_heads=heads)


@drawing("RotaryEmbedding", "GemmaRotaryEmbedding", domain=MICROSOFT)
def contrib_rotary_embedding(d: Draw) -> Drawn:
    """Positions before the tables."""
    b, s, heads, size = d.number(1, 2), d.number(1, 3), d.number(1, 2), d.one(2, 4)
    tables = [d.tensor("float", (8, size // 2)) for _ in range(2)]
    places = np.zeros((b, s), np.int64)
    shape = (b, heads, s, size) if d.chance(0.5) else (b, s, heads * size)
    return d.call([d.tensor("float", shape), places, *tables])


@drawing("Attention")
def attention(d: Draw) -> Drawn:
    """Grouped heads, pasts, values of another size."""
    b, s, t, past = d.number(1, 2), d.number(1, 3), d.number(1, 3), d.number(0, 2)
    shared, kv, size = d.one(1, 2), d.number(1, 2), d.one(2, 4)
    heads, value = shared * kv, d.one(size, 2, 6)
    mask = d.tensor("bool", (s, t + past)) | True if d.chance(0.3) else None
    pasts = [d.tensor("float", (b, kv, past, one)) for one in (size, value)] if d.chance(0.5) else []
    if not pasts and mask is not None:
        mask = mask[:, :t]
    if d.chance(0.5):
        shapes = (b, heads, s, size), (b, kv, t, size), (b, kv, t, value)
        given = {}
    else:
        shapes = (b, s, heads * size), (b, t, kv * size), (b, t, kv * value)  # type: ignore[assignment]
        given = {"q_num_heads": heads, "kv_num_heads": kv}
    outputs = d.number(1, 4) if pasts else d.one(1, 1, 4)
    result = d.call([*(d.tensor("float", one) for one in shapes), mask, *pasts], outputs, **given)
    if not pasts and outputs == 4:
        result.nodes[0].output[1] = result.nodes[0].output[2] = ""
    return result


@drawing("Attention", "QAttention", domain=MICROSOFT)
def contrib_attention(d: Draw) -> Drawn:
    """Weights inside, hidden sizes told, a past."""
    b, s, heads, size, past = d.number(1, 2), d.number(1, 3), d.number(1, 2), d.one(2, 4), d.number(0, 2)
    hidden, i = heads * size, d.number(1, 4)
    sizes = [hidden, hidden, heads * 2] if d.chance(0.3) and d.op == "Attention" else None
    total = sum(sizes) if sizes else 3 * hidden
    bias = d.tensor("float", (total,))
    before = d.tensor("float", (2, b, heads, past, size)) if d.chance(0.4) and not sizes else None
    if d.op == "QAttention":
        scale, zero = np.array(0.5, np.float32), np.array(1, np.uint8)
        x, w = d.tensor("uint8", (b, s, i)), d.tensor("uint8", (i, total))
        inputs = [x, w, bias, scale, scale, None, zero, zero, before]
        return d.call(inputs, 2 if before is not None else 1, num_heads=heads, unidirectional=int(before is not None))
    x, w = d.tensor("float", (b, s, i)), d.tensor("float", (i, total))
    return d.call([x, w, bias, None, before], 2 if before is not None else 1, num_heads=heads, qkv_hidden_sizes=sizes)


@drawing("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(d: Draw) -> Drawn:
    """Packed, apart, of four dimensions, with a past."""
    b, s, t, heads, size = d.number(1, 2), d.number(1, 3), d.number(1, 3), d.number(1, 2), d.one(2, 4)
    value = d.one(size, 2)
    form = d.one("apart", "apart", "apart", "packed", "pair", "four")
    q = d.tensor("float", (b, s, heads * size))
    if form == "packed":
        return d.call([d.tensor("float", (b, s, heads, 3, size))], num_heads=heads)
    if form == "pair":
        return d.call([q, d.tensor("float", (b, t, heads, 2, size))], num_heads=heads)
    if form == "four":
        rest = [d.tensor("float", (b, heads, t, one)) for one in (size, value)]
        return d.call([q, *rest], d.one(1, 3), num_heads=heads)
    rest = [d.tensor("float", (b, t, heads * one)) for one in (size, value)]
    if d.chance(0.4):
        past = d.number(0, 3)
        pasts = [d.tensor("float", (b, heads, past, one)) for one in (size, value)]
        return d.call([q, *rest, None, None, None, *pasts], d.one(1, 3), num_heads=heads)
    return d.call([q, *rest], d.one(1, 3), num_heads=heads)


@drawing("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(d: Draw) -> Drawn:
    """Packed or apart; the present is as long as it must be, or as the past."""
    b, s, kv, shared, size = d.number(1, 2), d.number(1, 3), d.number(1, 2), d.one(1, 2), 8
    heads, past = kv * shared, d.number(0, 4)
    pasts = [d.tensor("float", (b, kv, past, size)) for _ in range(2)]
    total = s if not past else past + s if d.chance(0.5) else max(s, past)
    counts = [np.full(b, total - 1, np.int32), np.array(total, np.int32)]
    if d.chance(0.5):
        q = [d.tensor("float", (b, s, (heads + 2 * kv) * size)), None, None]
    else:
        q = [d.tensor("float", (b, s, one * size)) for one in (heads, kv, kv)]
    return d.call([*q, *pasts, *counts], 3, num_heads=heads, kv_num_heads=kv)


@drawing("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_attention(d: Draw) -> Drawn:
    """One step of a decoder."""
    b, heads, size, longest = d.number(1, 2), d.number(1, 2), 4, 4
    q, k, v = (d.tensor("float", (b, 1, heads * size)) for _ in range(3))
    pasts = [d.tensor("float", (b, heads, longest, size)) for _ in range(2)]
    count = np.array([d.number(0, longest - 1)], np.int32)
    return d.call([q, k, v, None, None, *pasts, count], 3, num_heads=heads, past_present_share_buffer=1)


@drawing("PackedAttention", "PackedMultiHeadAttention", domain=MICROSOFT)
def packed_attention(d: Draw) -> Drawn:
    """Sequences without padding."""
    heads, hidden = 2, 4
    x = d.tensor("float", (3, hidden))
    offsets, sums = np.zeros((1, 3), np.int32), np.array([0, 3], np.int32)
    if d.op == "PackedMultiHeadAttention":
        return d.call([x, x, x, None, offsets, sums], num_heads=heads)
    w, bias = d.tensor("float", (hidden, 3 * hidden)), d.tensor("float", (3 * hidden,))
    return d.call([x, w, bias, offsets, sums], num_heads=heads)


@drawing("STFT")
def stft(d: Draw) -> Drawn:
    """With a window, a length, or both."""
    length, frame = d.number(0, 20), d.number(1, 8)
    shape = d.one((d.size(), length), (d.size(), length, 1), (d.size(), length, 2))
    window = d.tensor("float", (frame,)) if d.chance(0.6) else None
    told = np.array(frame, np.int64) if window is None or d.chance(0.4) else None
    step = np.array(d.number(1, 4), np.int64)
    return d.call([d.tensor("float", shape), step, window, told], onesided=d.one(None, 0, 1))


@drawing("DFT")
def dft(d: Draw) -> Drawn:
    """Real and complex signals, forwards and backwards, of all of an axis or of a length."""
    inverse, one_sided = d.one((None, None), (0, 1), (1, 0), (1, 1))
    shape = (d.size(), d.number(1, 6), d.number(1, 6), 2 if inverse else d.number(1, 2))
    x = d.tensor("float", (*shape[:3], 1) if one_sided and not inverse else shape)
    length = np.array(d.number(1, 8), np.int64) if d.chance(0.4) else None
    axis = d.one(-3, 1, 2)
    if d.opset < 20:
        return d.call([x, length], axis=axis, inverse=inverse, onesided=one_sided)
    return d.call([x, length, np.array(axis, np.int64)], inverse=inverse, onesided=one_sided)


__all__ = ["NEWEST"]

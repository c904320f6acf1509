"""Attention and rotary embeddings that are one op, against the products, the Softmax and the Transposes of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from ortopt.analysis.costs import Form
from ortopt.cost_measurement.entries import Array, Entry, FormComparison, Given, cases, normal, scalars, shape, weight
from ortopt.semantics.domains import MICROSOFT

_CORE: Final = "the products, the Softmax and the Transposes of heads"
_GROUPED: Final = "the products and the Softmax with query heads grouped by Reshape"
_TO_HEADS: Final = "Transpose <perm = [0, 2, 1, 3]>"


class _Sizes:
    """The sizes of an attention block."""

    def __init__(self, given: Given) -> None:
        self.batch, self.length, self.past = given.get("batch", 1), given["length"], given.get("past", 0)
        self.heads, self.size = given.get("heads", 8), given.get("size", 64)
        self.keys = given.get("kv_heads", self.heads)
        self.total = self.past + self.length

    def operands(self) -> dict[str, Array]:
        """Queries, keys and values with three dimensions, and what is in the cache."""
        wide, narrow = self.heads * self.size, self.keys * self.size
        inputs = {
            "q": normal(self.batch, self.length, wide),
            "k": normal(self.batch, self.length, narrow),
            "v": normal(self.batch, self.length, narrow) * np.float32(0.5),
        }
        cache = normal(self.batch, self.keys, self.past, self.size)
        return inputs | ({"pk": cache, "pv": cache * np.float32(0.5)} if self.past else {})

    def shapes(self) -> dict[str, Array]:
        """Constants that the blocks need."""
        batch, group = self.batch, self.heads // self.keys
        return {
            "sq": shape(batch, self.length, self.heads, self.size),
            "sk": shape(batch, self.length, self.keys, self.size),
            "flat": shape(batch, self.length, self.heads * self.size),
            "apart": shape(batch, self.keys, 1, self.total, self.size),
            "wide": shape(batch, self.keys, group, self.total, self.size),
            "again": shape(batch, self.heads, self.total, self.size),
            "grouped": shape(batch, self.keys, group * self.length, self.size),
            "heads": shape(batch, self.heads, self.length, self.size),
            **scalars(w=float(1 / np.sqrt(self.size))),
        }

    def heads_of(self, name: str) -> str:
        """Keys or values as heads, with what is in the cache before them; their result is ``{name}h``."""
        if not self.past:
            return f"{name}4 = Reshape ({name}, sk) {name}h = {_TO_HEADS} ({name}4)"
        new = f"{name}4 = Reshape ({name}, sk) {name}n = {_TO_HEADS} ({name}4)"
        return f"{new} {name}h = Concat <axis = 2> (p{name}, {name}n)"


def _spelled_out(sizes: _Sizes, *, grouped: bool = False, mask: str = "") -> str:
    """Attention in standard ops; query heads that share keys may be grouped, and a mask be added."""
    query, inner = ("qg", "cg") if grouped else ("qs", "c")
    text = [f"q4 = Reshape (q, sq) qh = {_TO_HEADS} (q4) qs = Mul (qh, w)", sizes.heads_of("k"), sizes.heads_of("v")]
    text += ["qg = Reshape (qs, grouped)"] if grouped else []
    text += ["kt = Transpose <perm = [0, 1, 3, 2]> (kh)", f"s = MatMul ({query}, kt)"]
    text += [f"sm = Add (s, {mask}) e = Softmax <axis = -1> (sm)" if mask else "e = Softmax <axis = -1> (s)"]
    text += [f"{inner} = MatMul (e, vh)"]
    text += ["c = Reshape (cg, heads)"] if grouped else []
    return " ".join([*text, f"cb = {_TO_HEADS} (c) y = Reshape (cb, flat)"])


def _attention(given: Given) -> FormComparison:
    sizes = _Sizes(given)
    heads = f"<q_num_heads = {sizes.heads}, kv_num_heads = {sizes.keys}>"
    after = f"y, nk, nv = Attention {heads} (q, k, v, , pk, pv)" if sizes.past else f"y = Attention {heads} (q, k, v)"
    return FormComparison(sizes.operands(), _spelled_out(sizes), after, sizes.shapes(), opset=23)


def _capped(given: Given) -> FormComparison:
    """Attention of which the scaled scores are bent, as Gemma 2 has it."""
    sizes = _Sizes(given)
    heads = f"<q_num_heads = {sizes.heads}, kv_num_heads = {sizes.keys}, softcap = 50.0>"
    after = f"y, nk, nv = Attention {heads} (q, k, v, , pk, pv)" if sizes.past else f"y = Attention {heads} (q, k, v)"
    bent = "s = MatMul (qs, kt) sd = Div (s, cap) st = Tanh (sd) sc = Mul (st, cap) e = Softmax <axis = -1> (sc)"
    before = _spelled_out(sizes).replace("s = MatMul (qs, kt) e = Softmax <axis = -1> (s)", bent)
    return FormComparison(sizes.operands(), before, after, sizes.shapes() | scalars(cap=50.0), opset=23)


def _heads_first(given: Given) -> FormComparison:
    sizes = _Sizes(given)
    text = " ".join(f"{name}4 = Reshape ({name}, sq) {name}h = {_TO_HEADS} ({name}4)" for name in "qkv")
    after = f"{text} c = Attention (qh, kh, vh) cb = {_TO_HEADS} (c) y = Reshape (cb, flat)"
    return FormComparison(sizes.operands(), _spelled_out(sizes), after, sizes.shapes(), opset=23)


def _packed(given: Given) -> FormComparison:
    """Attention with the projections of queries, keys and values in one weight."""
    sizes = _Sizes(given)
    hidden = sizes.heads * sizes.size
    parts = [weight(hidden, hidden) * np.float32(1 + number / 4) for number in range(3)]
    biases = [normal(hidden) * np.float32(0.1 + number) for number in range(3)]
    weights = sizes.shapes() | {"wp": np.concatenate(parts, axis=1), "bp": np.concatenate(biases)}
    weights |= {f"w{name}": part for name, part in zip("qkv", parts, strict=True)}
    weights |= {f"b{name}": part for name, part in zip("qkv", biases, strict=True)}
    projected = " ".join(f"{name}m = MatMul (x, w{name}) {name} = Add ({name}m, b{name})" for name in "qkv")
    after = f"y = {MICROSOFT}.Attention <num_heads = {sizes.heads}> (x, wp, bp)"
    return FormComparison(
        {"x": normal(sizes.batch, sizes.length, hidden)}, f"{projected} {_spelled_out(sizes)}", after, weights
    )


def _multi_head(given: Given) -> FormComparison:
    sizes = _Sizes(given)
    heads = f"<num_heads = {sizes.heads}>"
    after = f"y = {MICROSOFT}.MultiHeadAttention {heads} (q, k, v)"
    if sizes.past:
        after = f"y, nk, nv = {MICROSOFT}.MultiHeadAttention {heads} (q, k, v, , , , pk, pv)"
    return FormComparison(sizes.operands(), _spelled_out(sizes), after, sizes.shapes())


def _multi_head_of_attention(given: Given) -> FormComparison:
    sizes = _Sizes(given)
    before = f"y = Attention <q_num_heads = {sizes.heads}, kv_num_heads = {sizes.keys}> (q, k, v)"
    after = f"y = {MICROSOFT}.MultiHeadAttention <num_heads = {sizes.heads}> (q, k, v)"
    return FormComparison(sizes.operands(), before, after, sizes.shapes(), opset=23)


def _multi_head_with_bias(given: Given) -> FormComparison:
    sizes = _Sizes(given)
    biases = [normal(sizes.heads * sizes.size) * np.float32(0.1 + number) for number in range(3)]
    weights = sizes.shapes() | {"b": np.concatenate(biases)}
    weights |= {f"b{name}": part for name, part in zip("qkv", biases, strict=True)}
    inputs = {f"{name}m": array for name, array in sizes.operands().items()}
    biased = " ".join(f"{name} = Add ({name}m, b{name})" for name in "qkv")
    after = f"y = {MICROSOFT}.MultiHeadAttention <num_heads = {sizes.heads}> (qm, km, vm, b)"
    return FormComparison(inputs, f"{biased} {_spelled_out(sizes)}", after, weights)


def _multi_head_repeated(given: Given) -> FormComparison:
    """Heads that are repeated before MultiHeadAttention, against grouped query heads."""
    sizes = _Sizes(given)
    text = f"{sizes.heads_of('k')} {sizes.heads_of('v')} "
    for name in "kv":
        text += (
            f"{name}a = Reshape ({name}h, apart) {name}w = Expand ({name}a, wide) {name}r = Reshape ({name}w, again) "
        )
    after = f"{text} y = {MICROSOFT}.MultiHeadAttention <num_heads = {sizes.heads}> (q, kr, vr)"
    return FormComparison(sizes.operands(), _spelled_out(sizes, grouped=True), after, sizes.shapes())


def _group_query(given: Given) -> FormComparison:
    """GroupQueryAttention, of one sequence: it hides later keys, so the other form is given the mask that does."""
    sizes = _Sizes(given)
    positions = np.arange(sizes.length)[:, None] + sizes.past
    hidden = np.where(np.arange(sizes.total)[None, :] > positions, np.float32(-1e4), np.float32(0))
    weights = sizes.shapes() | {
        "mask": np.tile(hidden, (sizes.heads // sizes.keys, 1)).astype(np.float32),
        "last": np.full((sizes.batch, 1), sizes.total - 1, np.int32),
        "all": np.array(sizes.total, np.int32),
    }
    before = _spelled_out(sizes, grouped=True, mask="mask")
    heads = f"<num_heads = {sizes.heads}, kv_num_heads = {sizes.keys}>"
    past = "pk, pv" if sizes.past else ", "
    after = f"y, nk, nv = {MICROSOFT}.GroupQueryAttention {heads} (q, k, v, {past}, last, all)"
    return FormComparison(sizes.operands(), before, after, weights)


def _rotary(op: str, opset: int) -> Callable[[Given], FormComparison]:
    """Rotary embedding of halves, of three dimensions."""

    def build(given: Given) -> FormComparison:
        length, heads, size = given["length"], given["heads"], given["size"]
        half = size // 2
        angles = (np.arange(length, dtype=np.float32)[:, None] / np.float32(100.0)) * np.arange(
            1, half + 1, dtype=np.float32
        )
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        weights = scalars() | {
            "cos": cos,
            "sin": sin,
            "cosb": cos[None],
            "sinb": sin[None],
            "cos2": np.concatenate([cos, cos], axis=1),
            "sin2": np.concatenate([sin, sin], axis=1),
            "split": shape(1, length, heads, size),
            "flat": shape(1, length, heads * size),
            "zero": shape(0),
            "mid": shape(half),
            "end": shape(size),
            "last": shape(-1),
            "start": np.zeros((1, length), np.int64) + np.arange(length),
        }
        before = f"""a = Reshape (x, split) h = {_TO_HEADS} (a) left = Slice (h, zero, mid, last)
            right = Slice (h, mid, end, last) n = Neg (right) turned = Concat <axis = -1> (n, left) c = Mul (h, cos2)
            s = Mul (turned, sin2) e = Add (c, s) b = {_TO_HEADS} (e) y = Reshape (b, flat)"""
        after = f"y = {MICROSOFT}.RotaryEmbedding <num_heads = {heads}> (x, start, cos, sin)"
        if op == "standard":
            after = f"y = RotaryEmbedding <num_heads = {heads}> (x, cosb, sinb)"
        return FormComparison({"x": normal(1, length, heads * size)}, before, after, weights, opset=opset)

    return build


_LENGTHS: Final = cases(length=(16, 128, 512), heads=(12, 12, 12))
_WITH_PAST: Final = (*_LENGTHS, *cases(length=(1, 1, 7), past=(32, 512, 9), heads=(8, 8, 8)))
_GROUPS: Final = cases(
    length=(1, 1, 1, 16, 128), past=(32, 128, 512, 0, 0), heads=(16, 16, 16, 16, 16), kv_heads=(4, 4, 4, 4, 4)
)
_WITHOUT_CACHE: Final = tuple(
    dict(given) for given in cases(length=(1, 16, 128), heads=(16, 16, 16), kv_heads=(4, 4, 4))
)
_ROTARY: Final = cases(length=(1, 16, 128, 512), heads=(32, 12, 12, 12), size=(64, 64, 64, 64))

ENTRIES: Final = (
    Entry(Form("", "Attention"), _CORE, _attention, _WITH_PAST),
    Entry(
        Form("", "Attention", "with capped scores"),
        "the products, Tanh, the Softmax and the Transposes of heads",
        _capped,
        cases(length=(1, 1, 8, 16, 128), past=(32, 512, 0, 0, 0), heads=(8, 8, 8, 8, 8)),
    ),
    Entry(Form("", "Attention", "with heads first"), _CORE, _heads_first, _LENGTHS),
    Entry(
        Form(MICROSOFT, "Attention"),
        f"{_CORE}, and one product for each of q, k and v",
        _packed,
        cases(length=(1, 16, 128), heads=(4, 4, 4)),
    ),
    Entry(Form(MICROSOFT, "MultiHeadAttention"), _CORE, _multi_head, _WITH_PAST),
    Entry(
        Form(MICROSOFT, "MultiHeadAttention", "instead of Attention"),
        "Attention of ai.onnx without a mask",
        _multi_head_of_attention,
        cases(length=(16, 128, 512, 1024, 2048), heads=(8, 8, 8, 8, 4)),
    ),
    Entry(Form(MICROSOFT, "MultiHeadAttention", "with bias"), _CORE, _multi_head_with_bias, _LENGTHS),
    Entry(
        Form(MICROSOFT, "MultiHeadAttention", "with repeated heads"),
        "the products and the Softmax of repeated heads, which are faster with query heads grouped by Reshape",
        _multi_head_repeated,
        _WITHOUT_CACHE,
    ),
    Entry(Form(MICROSOFT, "GroupQueryAttention"), _GROUPED, _group_query, _GROUPS),
    Entry(Form("", "RotaryEmbedding"), "the products, the halves and the sum", _rotary("standard", 23), _ROTARY),
    Entry(Form(MICROSOFT, "RotaryEmbedding"), "the products, the halves and the sum", _rotary("contrib", 18), _ROTARY),
)
"""What is measured of attention and rotary embeddings."""

__all__ = ["ENTRIES"]

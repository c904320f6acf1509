"""An Einsum of one or two operands becomes a product of matrices, or of elements, between Transposes and Reshapes."""

from __future__ import annotations

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import parse

ATTENTION = ("Attention", "com.microsoft::Attention", "com.microsoft::MultiHeadAttention")


def test_attention_is_found_behind_it() -> None:
    weights = ", ".join(
        f"float[16,16] w{name} = {{{','.join(str((place % cycle - cycle // 2) / 10) for place in range(256))}}}"
        for name, cycle in (("q", 7), ("k", 5), ("v", 11))
    )
    text = f"""main (float[B,S,16] x) => (float[B,S,16] y)
        <{weights}, int64[4] split = {{0, 0, 2, 8}}, int64[3] join = {{0, 0, 16}}, float scale = {{0.35355338}}> {{
            qs = MatMul (x, wq) ks = MatMul (x, wk) vs = MatMul (x, wv)
            q = Reshape (qs, split) k = Reshape (ks, split) v = Reshape (vs, split)
            r = Einsum <equation = "bqhd,bkhd->bhqk"> (q, k) s = Mul (r, scale) p = Softmax <axis = -1> (s)
            o = Einsum <equation = "bhqk,bkhd->bqhd"> (p, v) y = Reshape (o, join)
        }}"""
    result = optimize(parse(text), level=2)
    ops = figures(result.model).ops
    assert "Einsum" not in ops
    assert sum(ops.get(op, 0) for op in ATTENTION) == 1, ops
    assert result.verified

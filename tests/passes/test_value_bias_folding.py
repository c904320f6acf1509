"""The bias of values becomes part of the bias behind an attention, if every row of probabilities adds up to 1."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "value_bias_folding"
W = f"float[8,4] w = {{{', '.join(str(x % 7 - 3) for x in range(32))}}}"
TURNED = f"float[4,8] w = {{{', '.join(str((x % 8 * 4 + x // 8) % 7 - 3) for x in range(32))}}}"
CONSTANTS = {
    "b": "float[8] b = {1, -2, 3, -4, 0.5, 6, -7, 8}",
    "o": "float[4] o = {1, 2, 3, 4}",
    "w": W,
    "split": "int64[4] split = {0, 0, 2, 4}",
    "merge": "int64[3] merge = {0, 0, 8}",
    "flat": "int64[2] flat = {-1, 8}",
    "zero": "float zero = {0}",
    "low": "float low = {-3.4028234663852886e38}",
}
ROW = np.array([1, -2, 3, -4, 0.5, 6, -7, 8])
FOLDED = [1, 2, 3, 4] + ROW @ (np.arange(32) % 7 - 3).reshape(8, 4)
QUERIES = "qs = Reshape (q, split) qh = Transpose <perm = [0, 2, 1, 3]> (qs)"
KEYS = "ks = Reshape (k, split) kt = Transpose <perm = [0, 2, 3, 1]> (ks)"
V = "vb = Add (v, b)"
VALUES = "vs = Reshape (vb, split) vh = Transpose <perm = [0, 2, 1, 3]> (vs)"
SCORES = "z = MatMul (qh, kt) p = Softmax <axis = -1> (z)"
JOINED = "c = MatMul (p, vh) j = Transpose <perm = [0, 2, 1, 3]> (c) x = Reshape (j, merge)"
OUT = "m = MatMul (x, w) y = Add (m, o)"
INPUTS = "float[2,3,8] q, float[2,5,8] k, float[2,5,8] v"
RESULT = "float[2,3,4] y"
STANDARD = "Attention <q_num_heads = 2, kv_num_heads = 2>"


def model(
    scores: str = SCORES, *, v: str = V, heads: str = VALUES, joined: str = JOINED, out: str = OUT,
    inputs: str = INPUTS, outputs: str = RESULT, more: str = "",
) -> str:  # fmt: skip
    return whole(f"{QUERIES} {KEYS} {v} {heads} {scores} {joined} {out}", inputs, outputs, more)


def whole(body: str, inputs: str = INPUTS, outputs: str = RESULT, more: str = "") -> str:
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = [text for name, text in CONSTANTS.items() if name in words and f" {name} = " not in more]
    return f"main ({inputs}) => ({outputs}) <{', '.join([*used, *([more] if more else [])])}> {{ {body} }}"


def row(numbers: object) -> str:
    return ", ".join(map(str, np.asarray(numbers).tolist()))


SPELLINGS = {
    "other order": model(v="vb = Add (b, v)", out="m = MatMul (x, w) y = Add (o, m)"),
    "in heads": model(
        v="vr = Reshape (v, split) vs = Add (vr, h)",
        heads="vh = Transpose <perm = [0, 2, 1, 3]> (vs)",
        more=f"float[2,4] h = {{{row(ROW)}}}",
    ),
    "heads first": model(
        v="vr = Reshape (v, split) vt = Transpose <perm = [0, 2, 1, 3]> (vr) vh = Add (vt, h)",
        heads="",
        more=f"float[2,1,4] h = {{{row(ROW)}}}",
    ),
    "one for all heads": model(
        v="vr = Reshape (v, split) vs = Add (vr, h)",
        heads="vh = Transpose <perm = [0, 2, 1, 3]> (vs)",
        more="float[4] h = {1, 2, 3, 4}",
    ),
    "mask": model(
        "d = MatMul (qh, kt) z = Add (d, a) p = Softmax <axis = -1> (z)", inputs=f"{INPUTS}, float[2,1,3,5] a"
    ),
    "as many keys as queries": model(
        inputs="float[N,S,8] q, float[N,S,8] k, float[N,S,8] v", outputs="float[N,S,4] y"
    ),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_folds(spelling: str) -> None:
    check_rewrites(PASS, SPELLINGS[spelling], ops={"Add": 1 + (spelling == "mask"), "Softmax": 1}, opset=18)


def test_what_it_becomes() -> None:
    after = model().replace(V, "").replace("(vb,", "(v,").replace(f"{CONSTANTS['b']}, ", "")
    check_rewrites(PASS, model(), after.replace(CONSTANTS["o"], f"float[4] o = {{{row(FOLDED)}}}"))


def test_a_gemm() -> None:
    text = model(
        joined=f"{JOINED} f = Reshape (x, flat)",
        out="y = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (f, w, o)",
        outputs="float[6,4] y",
        more=TURNED,
    )
    after = text.replace(V, "").replace("(vb,", "(v,").replace(f"{CONSTANTS['b']}, ", "")
    bias = [1, 2, 3, 4] + (FOLDED - [1, 2, 3, 4]) / 4
    check_rewrites(PASS, text, after.replace(CONSTANTS["o"], f"float[4] o = {{{row(bias)}}}"))


OPS = {
    "Attention": f"x = {STANDARD} (q, k, vb)",
    "MultiHeadAttention": "x = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, vb)",
}


@pytest.mark.parametrize("op", OPS)
def test_ops(op: str) -> None:
    check_rewrites(PASS, whole(f"{V} {OPS[op]} {OUT}"), ops={"Add": 1}, opset=23)


def test_an_op_with_a_finite_mask() -> None:
    text = whole(
        f"{V} x = {STANDARD} (q, k, vb, a) {OUT}",
        more="float[3,5] a = {0, -9, -9, -9, -9, -9, -9, -9, -9, -9, 0, 1, 2, 3, 4}",
    )
    check_rewrites(PASS, text, ops={"Add": 1}, opset=23)


def test_shared_heads() -> None:
    """Each head of values is read by two heads of queries, so the bias is repeated."""
    text = whole(
        f"{V} x = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, vb) m = MatMul (x, u) y = Add (m, o)",
        inputs="float[2,3,16] q, float[2,5,8] k, float[2,5,8] v",
        more=f"float[16,4] u = {{{', '.join(str(x % 7 - 3) for x in range(64))}}}",
    )
    check_rewrites(PASS, text, ops={"Add": 1}, opset=23)


PROJECTED = "q = MatMul (i, u) k = MatMul (i, u) v = MatMul (i, u)"
SQUARE = f"float[8,8] u = {{{', '.join(str(x % 7 / 8) for x in range(64))}}}"
GUARDED = "d = MatMul (qh, kt) z = Add (d, a) s = Softmax <axis = -1> (z) n = IsNaN (s) p = Where (n, zero, s)"
KEPT = {
    "no operand is a constant": model(inputs=f"{INPUTS}, float[8] b").replace(f"{CONSTANTS['b']}, ", ""),
    "the value is used elsewhere": model(outputs=f"{RESULT}, float[2,5,8] vb"),
    "of the attention is used elsewhere": model(outputs=f"{RESULT}, float[2,3,8] x"),
    "MatMul's result is used elsewhere": model(outputs=f"{RESULT}, float[2,3,4] m"),
    "it is not a constant": model(inputs=f"{INPUTS}, float[8,4] w").replace(f"{W}, ", ""),
    "a linear layer's bias is no row": model(more="float[3,4] o = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}"),
    "not the same at each position": model(v="vb = Add (v, h)", more="float[5,1] h = {1, 2, 3, 4, 5}"),
    "masked as a whole": whole(f"{PROJECTED} {QUERIES} {KEYS} {V} {VALUES} {GUARDED} {JOINED} {OUT}", inputs="float[2,3,8] i", more=f"{SQUARE}, float[3,3] a = {{-inf, -inf, -inf, 0, -inf, 0, 0, 0, 0}}"),  # noqa: E501
    "there may be no keys": model(inputs="float[N,S,8] q, float[N,T,8] k, float[N,T,8] v", outputs="float[N,S,4] y"),
    "no attention comes before": model("z = MatMul (qh, kt) p = Softmax <axis = -1> (z)", joined=f"{JOINED.replace('x =', 'xx =')} x = Relu (xx)"),  # noqa: E501
    "no Softmax comes before": model("z = MatMul (qh, kt) p = Sigmoid (z)"),
    "not be finite": model(v="vb = Add (v, h)", more="float[8] h = {3e38, 3e38, 3e38, 3e38, 3e38, 3e38, 3e38, 3e38}"),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT, opset=18)


@pytest.mark.parametrize("kind", ["float[2,1,3,5]", "bool[2,1,3,5]"])
def test_keeps_before_an_op_that_gives_0_where_a_row_is_masked(kind: str) -> None:
    text = whole(f"{V} x = {STANDARD} (q, k, vb, a) {OUT}", inputs=f"{INPUTS}, {kind} a")
    check_keeps(PASS, text, "masked as a whole", opset=23)

"""The bias of values becomes part of the bias behind an attention, if every row of probabilities adds up to 1."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

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

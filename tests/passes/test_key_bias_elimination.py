"""What is added to all keys alike goes: before any spelling of attention, and only if a softmax is all that sees it."""

import pytest

from ortopt.testing import check_rewrites

PASS = "key_bias_elimination"
CONSTANTS = {
    "b": "float[8] b = {1, -2, 3, -4, 0.5, 6, -7, 8}",
    "split": "int64[4] split = {0, 0, 2, 4}",
    "merge": "int64[3] merge = {0, 0, 8}",
    "half": "float half = {0.5}",
    "low": "float low = {-3.4028234663852886e38}",
    "zero": "float zero = {0}",
}
K = "kb = Add (k, b)"
HEADS = "ks = Reshape (kb, split) kt = Transpose <perm = [0, 2, 3, 1]> (ks)"
QUERIES = "qs = Reshape (q, split) qh = Transpose <perm = [0, 2, 1, 3]> (qs)"
VALUES = "vs = Reshape (v, split) vh = Transpose <perm = [0, 2, 1, 3]> (vs)"
SCORES = "z = MatMul (qh, kt) p = Softmax <axis = -1> (z)"
OUT = "c = MatMul (p, vh) j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, merge)"
INPUTS = "float[2,3,8] q, float[2,5,8] k, float[2,5,8] v"

ROWS = "-inf, -inf, -inf, 0, -inf, -inf, 0, 0, 0"
WEIGHT = f"float[8,8] w = {{{', '.join(str(x % 7 / 8) for x in range(64))}}}"


def model(
    scores: str = SCORES, *, k: str = K, heads: str = HEADS, out: str = OUT, inputs: str = INPUTS,
    outputs: str = "float[2,3,8] y", more: str = "",
) -> str:  # fmt: skip
    body = f"{QUERIES} {k} {heads} {VALUES} {scores} {out}"
    return whole(body, inputs, outputs, more)


def whole(body: str, inputs: str = INPUTS, outputs: str = "float[2,3,8] y", more: str = "") -> str:
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = [text for name, text in CONSTANTS.items() if name in words] + ([more] if more else [])
    return f"main ({inputs}) => ({outputs}) <{', '.join(used)}> {{ {body} }}"


SPELLINGS = {
    "plain": model(),
    "other order": model(k="kb = Add (b, k)"),
    "of size 1 beside": model(k="kb = Add (k, w)", more="float[1,1,8] w = {1, -2, 3, -4, 0.5, 6, -7, 8}"),
    "of each batch": model(k="kb = Add (k, w)", more=f"float[2,1,8] w = {{{', '.join(map(str, range(16)))}}}"),
    "in heads": model(
        k="kr = Reshape (k, split) ks = Add (kr, w)",
        heads="kt = Transpose <perm = [0, 2, 3, 1]> (ks)",
        more="float[2,4] w = {1, 2, 3, 4, 5, 6, 7, 8}",
    ),
    "scaled keys": model(heads=HEADS.replace("kt =", "ku =") + " kt = Mul (ku, half)"),
    "scaled": model("d = MatMul (qh, kt) z = Mul (d, half) p = Softmax <axis = -1> (z)"),
    "mask": model(
        "d = MatMul (qh, kt) z = Add (d, m) p = Softmax <axis = -1> (z)", inputs=f"{INPUTS}, float[2,1,3,5] m"
    ),
    "condition": model(
        "d = MatMul (qh, kt) z = Where (m, d, low) p = Softmax <axis = -1> (z)",
        k="k0 = MatMul (x, w) q = MatMul (x, w) v = MatMul (x, w) kb = Add (k0, b)",
        inputs="float[2,3,8] x, bool[2,1,3,3] m",
        more=WEIGHT,
    ),
    "symbols": model(
        inputs="float[N,S,8] q, float[N,T,8] k, float[N,T,8] v", outputs="float[N,S,8] y"
    ),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_goes(spelling: str) -> None:
    check_rewrites(PASS, SPELLINGS[spelling], ops={"Add": int(spelling == "mask"), "Softmax": 1}, opset=18)


def test_what_it_becomes() -> None:
    check_rewrites(PASS, model(), model().replace(K, "").replace("(kb,", "(k,").replace(f"{CONSTANTS['b']}, ", ""))


def test_goes_where_guarded_rows_are_masked() -> None:
    scores = "d = MatMul (qh, kt) z = Add (d, m) s = Softmax <axis = -1> (z) n = IsNaN (s) p = Where (n, zero, s)"
    projected = "k0 = MatMul (x, w) q = MatMul (x, w) v = MatMul (x, w) kb = Add (k0, b)"
    text = model(scores, k=projected, inputs="float[2,3,8] x", more=f"float[3,3] m = {{{ROWS}}}, {WEIGHT}")
    check_rewrites(PASS, text, ops={"Add": 1, "Softmax": 1})


def test_a_gemm() -> None:
    text = model(
        k="kg = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (k, w, b)",
        heads="ks = Reshape (kg, five) kt = Transpose <perm = [0, 2, 3, 1]> (ks)",
        inputs="float[2,3,8] q, float[10,8] k, float[2,5,8] v",
        more=f"int64[4] five = {{2, 5, 2, 4}}, {WEIGHT}",
    )
    check_rewrites(PASS, text, text.replace("(k, w, b)", "(k, w)").replace(f"{CONSTANTS['b']}, ", ""))

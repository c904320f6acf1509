"""A bias before a residual sum becomes part of a normalization's shift; its other readers take it back."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "residual_bias_folding"
SCALE, SHIFT, BIAS, OTHER = [1.5, 2, -1, 0.5], [0.5, -0.25, 1, 2], [0.25, -0.5, 0.75, 1], [3, 2, 1, 0, -1, -2]
W = (np.arange(24) % 7 - 3).reshape(4, 6)
U = (np.arange(24) % 5 - 2).reshape(6, 4)


def constants(text: str, **others: object) -> str:
    """The constants that a text names; for some of them, other contents."""
    known = {"g": SCALE, "s": SHIFT, "b": BIAS, "c": OTHER, "w": W, "u": U} | others
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    arrays = {name: np.asarray(content) for name, content in known.items() if name in words}
    return ", ".join(
        f"float[{','.join(map(str, array.shape))}] {name} = {{{', '.join(map(str, array.reshape(-1).tolist()))}}}"
        for name, array in arrays.items()
    )


NORMALIZED = "r = LayerNormalization (x, g, s)"
FIRST = "m = MatMul (r, w) a = Add (m, c)"
SECOND = "h = Relu (a) n = MatMul (h, u) t = Add (n, b)"
OUT = "y = Add (t, r)"
INPUTS = "float[N,S,4] x"
RESULT = "float[N,S,4] y"


def model(
    first: str = FIRST, second: str = SECOND, out: str = OUT, *, normalized: str = NORMALIZED, inputs: str = INPUTS,
    outputs: str = RESULT, **others: object,
) -> str:  # fmt: skip
    body = f"{normalized} {first} {second} {out}"
    return f"main ({inputs}) => ({outputs}) <{constants(body, **others)}> {{ {body} }}"


MOVED = {"s": np.add(SHIFT, BIAS), "c": OTHER - np.asarray(BIAS) @ W}
LESS = SECOND.replace("t = Add (n, b)", "")


def test_a_layer() -> None:
    check_rewrites(PASS, model(), model(second=LESS, out="y = Add (r, n)", **MOVED))


SPELLINGS = {
    "other order": model(FIRST.replace("m, c", "c, m"), SECOND.replace("n, b", "b, n"), "y = Add (r, t)"),
    "Sums": model(FIRST.replace("Add", "Sum"), SECOND.replace("Add", "Sum"), "y = Sum (r, t)"),
    "axis": model(normalized="r = LayerNormalization <axis = 2, epsilon = 0.001> (x, g, s)"),
    "two layers": model(f"{FIRST} m2 = MatMul (r, w) a2 = Add (m2, d) a3 = Mul (a, a2)", SECOND.replace("(a)", "(a3)"), d=OTHER[::-1]),  # noqa: E501
    "no reader": model("", "n = MatMul (h, u) t = Add (n, b)", inputs=f"{INPUTS}, float[N,S,6] h"),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling: str) -> None:
    text = SPELLINGS[spelling]
    layers = {"two layers": 2, "no reader": 0, "Sums": 0}.get(spelling, 1)
    check_rewrites(PASS, text, ops={"Add": layers + (spelling != "Sums"), "Sum": 2 * (spelling == "Sums")})


@pytest.mark.parametrize("turned", [0, 1])
def test_a_gemm(turned: int) -> None:
    gemm = f"a = Gemm <alpha = 0.5, beta = 2.0, transB = {turned}> (r, w, c)"
    flat = {"inputs": "float[N,4] x", "outputs": "float[N,4] y"}
    w = W.T if turned else W
    moved = {"s": MOVED["s"], "c": OTHER - np.asarray(BIAS) @ W / 4, "w": w}
    check_rewrites(PASS, model(gemm, w=w, **flat), model(gemm, LESS, "y = Add (r, n)", **flat, **moved))


HEADS = (
    "q0 = MatMul (r, k1) q = Add (q0, b) qs = Reshape (q, split) qh = Transpose <perm = [0, 2, 1, 3]> (qs)"
    " k = MatMul (r, k2) ks = Reshape (k, split) kt = Transpose <perm = [0, 2, 3, 1]> (ks)"
    " v0 = MatMul (r, k3) v = Add (v0, b) vs = Reshape (v, split) vh = Transpose <perm = [0, 2, 1, 3]> (vs)"
    " z = MatMul (qh, kt) p = Softmax <axis = -1> (z) o = MatMul (p, vh)"
    " j = Transpose <perm = [0, 2, 1, 3]> (o) l = Reshape (j, merge) n = MatMul (l, k4) t = Add (n, b)"
)
SQUARES = {f"k{place}": (np.arange(16) * place % 5 - 2).reshape(4, 4) / 4 for place in range(1, 5)}


def attention(text: str = HEADS, **more: str) -> str:
    shapes = "int64[4] split = {0, 0, 2, 2}, int64[3] merge = {0, 0, 4}"
    return model("", text, inputs="float[2,3,4] x", outputs="float[2,3,4] y", **SQUARES, **more).replace(
        "<", f"<{shapes}, ", 1
    )


def test_keys_without_a_bias() -> None:
    check_rewrites(PASS, attention(), ops={"Add": 3, "Softmax": 1})

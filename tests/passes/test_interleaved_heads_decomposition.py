"""Heads whose queries, keys and values stand side by side: their product gives all queries, all keys, all values."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "interleaved_heads_decomposition"
IMPORTS = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
X = "float[B,S,1] x"
RESULTS = "float[B,2,S,2] q, float[B,2,S,2] k, float[B,2,S,2] v"
WEIGHTS = "float[1,12] w = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, float[12] c = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, -1, -2}"
SORTED = "float[1,12] w = {0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}, float[12] c = {9, 8, 3, 2, 7, 6, 1, 0, 5, 4, -1, -2}"
FOUR = "int64[4] s = {0, 0, 2, 6}"
FIVE = "int64[5] s = {0, 0, 2, 3, 2}, int64 f = {0}, int64 g = {1}, int64 h = {-1}"
PRODUCT = "m = MatMul (x, w) y = Add (m, c)"
MOVED = "r = Reshape (y, s) t = Transpose<perm = [0, 2, 1, 3]> (r)"
SPLIT = "z = Constant<value_ints = [2, 2, 2]> () q, k, v = Split<axis = 3> (t, z)"
BODY = f"{PRODUCT} {MOVED} {SPLIT}"
PARTS = """n = Constant<value_ints = [4, 4, 4]> () qs, ks, vs = Split<axis = 2> (y, n)
    u = Constant<value_ints = [0, 0, 2, 2]> () vh = Reshape (vs, u) v = Transpose<perm = [0, 2, 1, 3]> (vh)
    kh = Reshape (ks, u) k = Transpose<perm = [0, 2, 1, 3]> (kh)
    qh = Reshape (qs, u) q = Transpose<perm = [0, 2, 1, 3]> (qh)"""


def model(body: str, x: str = X, results: str = RESULTS, constants: str = f"{WEIGHTS}, {FOUR}") -> str:
    """The text of a model."""
    return f"{IMPORTS} main ({x}) => ({results}) <{constants}> {{ {body} }}"


AFTER = model(f"{PRODUCT} {PARTS}", constants=SORTED)


def test_parts_of_the_last_axis_behind_a_transpose() -> None:
    check_rewrites(PASS, model(BODY), AFTER)


@pytest.mark.parametrize(("perm", "axis"), [("0, 2, 1, 3, 4", 3), ("3, 0, 2, 1, 4", 0)])
def test_an_axis_of_parts(perm: str, axis: int) -> None:
    takers = " ".join(f"{part} = Gather<axis = {axis}> (t, {index})" for part, index in zip("qvk", "fhg", strict=True))
    body = f"{PRODUCT} r = Reshape (y, s) t = Transpose<perm = [{perm}]> (r) {takers}"
    check_rewrites(PASS, model(body, constants=f"{WEIGHTS}, {FIVE}"), AFTER)


def cut(name: str, start: int, end: int) -> str:
    """A Slice of the last axis of the heads."""
    bounds = {"b": start, "e": end, "a": -1}
    lists = " ".join(f"{name}{key} = Constant<value_ints = [{bound}]> ()" for key, bound in bounds.items())
    return f"{lists} {name} = Slice (r, {name}b, {name}e, {name}a)"


def test_slices_of_several_sizes_and_no_transpose() -> None:
    body = f"{PRODUCT} r = Reshape (y, s) {cut('q', 0, 1)} {cut('v', 2, 99)} {cut('k', 1, 2)}"
    results = "float[B,S,2,1] q, float[B,S,2,1] k, float[B,S,2,4] v"
    ops = {"Slice": 0, "Split": 1, "Reshape": 3, "Transpose": 0}
    check_rewrites(PASS, model(body, results=results), ops=ops)


def test_groups_of_heads() -> None:
    """Two queries, a key and a value in each group, as in Falcon."""
    results = "float[B,S,2,2,1] q, float[B,S,2,1,1] k, float[B,S,2,1,1] v"
    constants = "float[1,8] w = {0, 1, 2, 3, 4, 5, 6, 7}, int64[5] s = {0, 0, 2, 4, 1}, int64[3] z = {2, 1, 1}"
    body = "y = MatMul (x, w) r = Reshape (y, s) q, k, v = Split<axis = 3> (r, z)"
    after = """y = MatMul (x, w) n = Constant<value_ints = [4, 2, 2]> () qs, ks, vs = Split<axis = 2> (y, n)
        u = Constant<value_ints = [0, 0, 2, 2, 1]> () o = Constant<value_ints = [0, 0, 2, 1, 1]> ()
        v = Reshape (vs, o) k = Reshape (ks, o) q = Reshape (qs, u)"""
    sorted_ = "float[1,8] w = {0, 1, 4, 5, 2, 6, 3, 7}"
    after = model(after, results=results, constants=sorted_)
    check_rewrites(PASS, model(body, results=results, constants=constants), after)


@pytest.mark.parametrize("turned", [0, 1])
def test_gemm(turned: int) -> None:
    results = RESULTS.replace("[B,", "[")
    constants = f"{WEIGHTS}, int64[3] s = {{0, 2, 6}}".replace("[1,12]", "[12,1]" if turned else "[1,12]")
    body = f"y = Gemm<transB = {turned}> (x, w, c) r = Reshape (y, s) t = Transpose<perm = [1, 0, 2]> (r) {SPLIT}"
    text = model(body.replace("axis = 3", "axis = 2"), "float[S,1] x", results, constants)
    check_rewrites(PASS, text, ops={"Gemm": 1, "Reshape": 3, "Transpose": 3})


INTEGERS = f"""uint8[1,12] w = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}, {FOUR},
    uint8[12] p = {{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}}, float[12] c = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}"""
QUANTIZED = {
    "a product of integers": (
        "uint8[B,S,1] x, uint8 a, float u",
        "i = MatMulInteger (x, w, a, p) d = Cast<to = 1> (i) e = Mul (d, u) y = Mul (c, e)",
    ),
    "dynamic quantization": (X, "y = com.microsoft.DynamicQuantizeMatMul (x, w, c, p, c)"),
    "integers to floats": (
        "uint8[B,S,1] x, uint8 a, float u",
        "y = com.microsoft.MatMulIntegerToFloat (x, w, u, c, a, p)",
    ),
}


@pytest.mark.parametrize("case", QUANTIZED)
def test_integers(case: str) -> None:
    x, product = QUANTIZED[case]
    ops = {"Split": 1, "Reshape": 3, "Transpose": 3}
    check_rewrites(PASS, model(f"{product} {MOVED} {SPLIT}", x, constants=INTEGERS), ops=ops)


ONE_HEAD = f"{PRODUCT} {MOVED} {SPLIT.replace('2, 2, 2', '4, 4, 4')}"
HEAD_SPLIT = f"{PRODUCT} {MOVED} z = Constant<value_ints = [1, 1]> () q, k = Split<axis = 1> (t, z)"
KEPT = {
    "a part that is not read": (
        "the parts are not all of a head, each once",
        model(f"{PRODUCT} r = Reshape (y, s) {cut('q', 0, 2)} {cut('k', 2, 4)}", results="float[B,S,2,2] q, float k"),
    ),
    "a part twice": (
        "the parts are not all of a head, each once",
        model(f"{PRODUCT} r = Reshape (y, s) {cut('q', 0, 4)} {cut('k', 2, 6)}", results="float q, float k"),
    ),
    "what is rotated and the rest": (
        "two parts of a head may be what is rotated, and the rest",
        model(f"{PRODUCT} r = Reshape (y, s) {cut('q', 0, 4)} {cut('k', 4, 6)}", results="float q, float k"),
    ),
    "all is read, too": (
        "it does more than to move elements",
        model(f"{BODY} e = Relu (t)", results=f"{RESULTS}, float[B,2,S,6] e"),
    ),
    "heads are a result": ("what is split is a result", model(BODY, results=f"{RESULTS}, float[B,2,S,6] t")),
    "another axis": (
        "it takes something else than a part of this axis",
        model(HEAD_SPLIT, results="float[B,1,S,6] q, float[B,1,S,6] k"),
    ),
    "one head": (
        "the sizes of heads are not known",
        model(
            ONE_HEAD,
            results=RESULTS.replace("2,S,2", "1,S,4"),
            constants=f"{WEIGHTS}, {FOUR}".replace("2, 6}", "1, 12}"),
        ),
    ),
    "a weight that is given": (
        "what differs by column is no constant",
        model(BODY.replace("x, w", "x, e"), f"{X}, float[1,12] e"),
    ),
    "a sum that is computed": (
        "what differs by column is no constant",
        model(BODY.replace("m, c", "m, e"), f"{X}, float[B,S,12] e"),
    ),
    "no product": (
        "no product with a constant matrix comes before",
        model(f"y = Relu (x) {MOVED} {SPLIT}", "float[B,S,12] x"),
    ),
    "the product is used elsewhere": (
        "it is used elsewhere",
        model(f"{BODY} e = Relu (y)", results=f"{RESULTS}, float[B,S,12] e"),
    ),
    "several matrices": (
        "the product is of several matrices",
        model(BODY, constants=f"{WEIGHTS}, {FOUR}".replace("float[1,12]", "float[1,1,12]")),
    ),
}


test_keeps = keeps(PASS, KEPT)

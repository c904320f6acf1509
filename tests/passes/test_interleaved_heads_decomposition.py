"""Heads whose queries, keys and values stand side by side: their product gives all queries, all keys, all values."""

import pytest

from ortopt.testing import check_rewrites

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

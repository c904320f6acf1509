"""Packed queries, keys and values are split before their heads are moved."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "packed_heads_decomposition"
IMPORTS = '<ir_version: 8, opset_import: ["" : 17]>'
RESULTS = "float[B,2,S,4] q, float[B,2,S,4] k, float[B,2,S,4] v"
HEAD = (
    f"{IMPORTS} main (float[B,S,24] x) => ({RESULTS}) <int64[5] s = {{0, 0, 3, 2, 4}}, int64 i = {{0}}, int64 j = {{1}}"
)
HEAD += ", int64 l = {-1}>"
MOVED = "r = Reshape (x, s) t = Transpose<perm = [2, 0, 3, 1, 4]> (r)"
BODY = f"{MOVED} v = Gather (t, l) q = Gather<axis = 0> (t, i) k = Gather (t, j)"
AFTER = """n = Constant<value_ints = [8, 8, 8]> () a, b, c = Split<axis = 2> (x, n)
    h = Constant<value_ints = [0, 0, 2, 4]> () f = Reshape (c, h) v = Transpose<perm = [0, 2, 1, 3]> (f)
    e = Reshape (b, h) k = Transpose<perm = [0, 2, 1, 3]> (e) d = Reshape (a, h)
    q = Transpose<perm = [0, 2, 1, 3]> (d)"""


def test_queries_keys_and_values() -> None:
    check_rewrites(PASS, f"{HEAD} {{ {BODY} }}", AFTER)


WINDOWS = f"""{IMPORTS} main (float[B,4,24] x) => (float[1,B,2,2,2,4] q, float[1,B,2,2,2,4] k)
    <int64[6] s = {{0, 2, 2, 2, 2, 4}}> {{
    r = Reshape (x, s) t = Transpose<perm = [3, 0, 4, 2, 1, 5]> (r) q, k = Split<axis = 0> (t) }}"""


SAM = f"""{IMPORTS} main (float[9,2,2,24] x) => (float[18,4,4] q, float[18,4,4] k, float[18,4,4] v)
    <int64[5] s = {{9, 4, 3, 2, 4}}, int64[4] j = {{3, 18, 4, 4}}> {{
    r = Reshape (x, s) t = Transpose<perm = [2, 0, 3, 1, 4]> (r) u = Reshape (t, j)
    zero = Constant<value_int = 0> () one = Constant<value_int = 1> () two = Constant<value_int = 2> ()
    q = Gather (u, zero) k = Gather (u, one) v = Gather (u, two) }}"""


def test_any_order_of_the_other_axes() -> None:
    text = SAM.replace("2, 0, 3, 1, 4", "2, 3, 0, 1, 4")
    check_rewrites(PASS, text, ops={"Split": 1, "Transpose": 3})


def test_windows_and_a_split() -> None:
    text = WINDOWS.replace("B,4,24", "3,4,16").replace("1,B,", "1,3,")
    check_rewrites(PASS, text, ops={"Split": 1, "Transpose": 2, "Unsqueeze": 2})
    check_rewrites(PASS, WINDOWS.replace("B,4,24", "B,4,16"), ops={"Split": 1, "Transpose": 2}, numbers=False)


def test_batches_and_heads_in_one() -> None:
    check_rewrites(PASS, SAM, ops={"Split": 1, "Transpose": 3, "Gather": 0, "Reshape": 6})
    text = f"{SAM[: SAM.index('zero = C')]} q, k, v = Split (u) }}"
    for name in "qkv":
        text = text.replace(f"float[18,4,4] {name}", f"float[1,18,4,4] {name}")
    check_rewrites(PASS, text, ops={"Split": 1, "Transpose": 3, "Reshape": 6, "Unsqueeze": 0})


KEPT = {
    "another order": (
        "no parts are brought to the front",
        HEAD.replace(RESULTS, "float[D,2,S,4] q, float[D,2,S,4] k, float[D,2,S,4] v"),
        BODY.replace("2, 0, 3, 1, 4", "0, 2, 3, 1, 4"),
    ),
    "other users": (
        "what is packed is used elsewhere",
        HEAD.replace(RESULTS, f"{RESULTS}, float[B,S,3,2,4] r"),
        BODY,
    ),
    "a part that is not read": (
        "a part is not read",
        HEAD.replace("float[B,2,S,4] q, ", "").replace(", int64 i = {0}", ""),
        BODY.replace("q = Gather<axis = 0> (t, i)", ""),
    ),
    "a part twice": ("a part is read twice", HEAD.replace("{0}", "{2}"), BODY),
    "parts together": (
        "the parts are read together",
        HEAD.replace("int64 j = {1}", "int64[1] j = {1}").replace("float[B,2,S,4] k", "float[1,B,2,S,4] k"),
        BODY,
    ),
    "another axis": (
        "the parts are read together",
        HEAD.replace("float[B,2,S,4] k", "float[3,B,S,4] k"),
        BODY.replace("k = Gather (t", "k = Gather<axis = 2> (t"),
    ),
    "the parts are a result": ("the parts are a result", HEAD.replace(RESULTS, f"{RESULTS}, float[3,B,2,S,4] t"), BODY),
    "positions and heads in one": (
        "the Reshape joins other axes",
        HEAD.replace("{0, 0, 3", "{0, 2, 3").replace("float[B,S,24]", "float[B,1,48]").replace("2,S,4", "2,2,4"),
        BODY,
    ),
    "any number of heads": (
        "the sizes of heads are not known",
        HEAD.replace("{0, 0, 3, 2, 4}", "{0, 0, 3, -1, 4}").replace("S,24", "S,W").replace("B,2,S", "B,N,S"),
        BODY,
    ),
}


test_keeps_windows = keeps(
    PASS,
    [
        ("joins the parts with another axis", SAM.replace("{3, 18, 4, 4}", "{6, 9, 4, 4}").replace("[18,4,4]", "[9,4,4]")),  # noqa: E501
        ("the parts are a result", SAM.replace("(float[18", "(float[3,18,4,4] u, float[18", 1)),
        ("the parts are read together", WINDOWS.replace("B,4,24", "B,4,16").replace("q, k = Split<axis = 0> (t)", "q, k = Split<axis = 0> (t) z = Neg (t)").replace("=> (", "=> (float[2,B,2,2,2,4] z, ")),  # noqa: E501
        ("there is one part", WINDOWS.replace("B,4,24", "B,4,8").replace("2, 2, 2, 2, 4", "2, 2, 1, 2, 4").replace("q, k = Split<axis = 0> (t)", "q = Neg (t)").replace(", float[1,B,2,2,2,4] k", "")),  # noqa: E501
        ("there are no heads", SAM.replace("[9,2,2,24]", "[9,2,2,0]").replace("{9, 4, 3, 2, 4}", "{9, 4, 3, 2, 0}").replace("allowzero", "").replace("Reshape (x", "Reshape<allowzero = 1> (x").replace("{3, 18, 4, 4}", "{3, 18, 4, 0}").replace("[18,4,4]", "[18,4,0]").replace("Reshape (t", "Reshape<allowzero = 1> (t")),  # noqa: E501
        ("an axis is empty", SAM.replace("[9,2,2,24]", "[9,0,2,24]").replace("{9, 4, 3, 2, 4}", "{9, 0, 3, 2, 4}").replace("{3, 18, 4, 4}", "{3, 18, 0, 4}").replace("[18,4,4]", "[18,0,4]").replace("Reshape (", "Reshape<allowzero = 1> (").replace("[9,0,2,24]", "[3,3,0,24]")),  # noqa: E501
    ],
)  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    because, head, body = KEPT[case]
    check_keeps(PASS, f"{head} {{ {body} }}", because)

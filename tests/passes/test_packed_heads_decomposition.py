"""Packed queries, keys and values are split before their heads are moved."""

import pytest

from ortopt.testing import check_keeps

PASS = "packed_heads_decomposition"
IMPORTS = '<ir_version: 8, opset_import: ["" : 17]>'
RESULTS = "float[B,2,S,4] q, float[B,2,S,4] k, float[B,2,S,4] v"
HEAD = (
    f"{IMPORTS} main (float[B,S,24] x) => ({RESULTS}) <int64[5] s = {{0, 0, 3, 2, 4}}, int64 i = {{0}}, int64 j = {{1}}"
)
HEAD += ", int64 l = {-1}>"
MOVED = "r = Reshape (x, s) t = Transpose<perm = [2, 0, 3, 1, 4]> (r)"
BODY = f"{MOVED} v = Gather (t, l) q = Gather<axis = 0> (t, i) k = Gather (t, j)"


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
        "the parts are not all of a head, each once",
        HEAD.replace("float[B,2,S,4] q, ", "").replace(", int64 i = {0}", ""),
        BODY.replace("q = Gather<axis = 0> (t, i)", ""),
    ),
    "a part twice": ("the parts are not all of a head, each once", HEAD.replace("{0}", "{2}"), BODY),
    "another axis": (
        "the parts are not all of a head, each once",
        HEAD.replace("float[B,2,S,4] k", "float[3,B,S,4] k"),
        BODY.replace("k = Gather (t", "k = Gather<axis = 2> (t"),
    ),
    "the parts are a result": ("the parts are a result", HEAD.replace(RESULTS, f"{RESULTS}, float[3,B,2,S,4] t"), BODY),
    "positions and heads in one": (
        "the columns of a part do not stand side by side",
        HEAD.replace("{0, 0, 3", "{0, 2, 3").replace("float[B,S,24]", "float[B,1,48]").replace("2,S,4", "2,2,4"),
        BODY,
    ),
    "any number of heads": (
        "the axes come apart into others",
        HEAD.replace("{0, 0, 3, 2, 4}", "{0, 0, 3, -1, 4}").replace("S,24", "S,W").replace("B,2,S", "B,N,S"),
        BODY,
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    because, head, body = KEPT[case]
    check_keeps(PASS, f"{head} {{ {body} }}", because)

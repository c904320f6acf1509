"""An attention of which one position is read has one query."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "query_selection_reordering"
QKV = "float[N,S,8] q, float[N,T,8] k, float[N,T,8] v"
HEADS = "q_num_heads = 2, kv_num_heads = 2"


def model(
    call: str = f"Attention <{HEADS}> (q, k, v)",
    more: str = "",
    qkv: str = QKV,
    y: str = "float[N,8] y",
    index: str = "int64 i = {1}",
) -> str:
    return f"""<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
        main ({qkv}{more}) => ({y}) <{index}> {{ a = {call} y = Gather <axis = 1> (a, i) }}"""


AFTER = """<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
    main (float[N,S,8] q, float[N,T,8] k, float[N,T,8] v) => (float[N,8] y) <int64 i = {1}, int64[1] one = {1}> {
    g = Gather <axis = 1> (q, i) u = Unsqueeze (g, one) a = Attention <q_num_heads = 2, kv_num_heads = 2> (u, k, v)
    y = Squeeze (a, one) }"""


def test_reorders() -> None:
    check_rewrites(PASS, model(), AFTER)
    check_rewrites(PASS, model(index="int64 i = {-1}"), ops={"Gather": 1, "Squeeze": 1})


@pytest.mark.parametrize("mask", ["float[S,T]", "float[N,1,S,T]", "bool[1,2,S,T]"])
def test_a_row_of_the_mask(mask: str) -> None:
    text = model(f"Attention <{HEADS}> (q, k, v, m)", f", {mask} m")
    check_rewrites(PASS, text, ops={"Gather": 2, "Squeeze": 1})


@pytest.mark.parametrize(("mask", "gathers"), [("", 1), ("float[1,1,S,S] m", 2), ("float[N,2,S,S] m", 2)])
def test_onnxruntimes_own(mask: str, gathers: int) -> None:
    call = f"com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v{', , , m' if mask else ''})"
    text = model(call, f", {mask}" if mask else "", QKV.replace("T", "S"))
    check_rewrites(PASS, text, ops={"Gather": gathers, "Squeeze": 1})


KEPT = {
    "selects no single place": model(index="int64[1] i = {1}", y="float[N,1,8] y"),
    "selects no position": model().replace("Gather <axis = 1>", "Gather <axis = 2>").replace("[N,8] y", "[N,S] y"),
    "is causal": model(f"Attention <{HEADS}, is_causal = 1> (q, k, v)"),
    "there is one position": model(qkv=QKV.replace("S", "1"), index="int64 i = {0}"),
    "a's result is used elsewhere": model(y="float[N,8] y, float[N,S,8] a"),
    "no attention comes before": model("Relu (q)", qkv="float[N,S,8] q"),
    "with three axes": model("com.microsoft.MultiHeadAttention <num_heads = 2> (q)", qkv="float[N,S,2,3,4] q"),
}


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(PASS, KEPT[because], because.replace("a's result is", "is"))

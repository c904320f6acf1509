"""RotaryEmbedding and Split before a GroupQueryAttention go into it."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "group_query_operand_folding"
GQA = "com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2, causal = 0, scale = 0.25"
LENGTHS = "int32[2] last = {2, 2}, int32 total = {3}"
TURN = """qr = com.microsoft.RotaryEmbedding <num_heads = 4> (q, zero, c, s)
    kr = com.microsoft.RotaryEmbedding <num_heads = 2> (k, zero, c, s)"""
ATTEND = f"y = {GQA}> (qr, kr, v, , , last, total)"
ZERO = ", int64[1] zero = {0}"


def tables(rows: int = 3, width: int = 8) -> str:
    angles = np.arange(rows * width).reshape(-1) / 7
    return "".join(
        f", float[{rows},{width}] {name} = {{{', '.join(f'{value:.6f}' for value in values)}}}"
        for name, values in (("c", np.cos(angles)), ("s", np.sin(angles)))
    )


def model(body: str = f"{TURN} {ATTEND}", more: str = ZERO + tables(), length: str = "3") -> str:
    inputs = f"float[2,{length},64] q, float[2,{length},32] k, float[2,{length},32] v"
    return f"main ({inputs}) => (float[2,{length},64] y) <{LENGTHS}{more}> {{ {body} }}"


@pytest.mark.parametrize("interleaved", [0, 1])
def test_an_embedding(interleaved: int) -> None:
    body = f"{TURN} {ATTEND}".replace("RotaryEmbedding <", f"RotaryEmbedding <interleaved = {interleaved}, ")
    after = f"y = {GQA}, do_rotary = 1, rotary_interleaved = {interleaved}> (q, k, v, , , last, total, c, s)"
    check_rewrites(PASS, model(body), after)


def test_an_embedding_and_a_mask() -> None:
    text = model(f"{TURN} {ATTEND}".replace("total)", "total, , , , m)"), ZERO + tables())
    text = text.replace("v) =>", "v, float[1,1,3,3] m) =>").replace("32] v)", "32] v, float[1,1,3,3] m)")
    after = f"y = {GQA}, do_rotary = 1, rotary_interleaved = 0> (q, k, v, , , last, total, c, s, , m)"
    check_rewrites(PASS, text, after)


SPLIT = f"q, k, v = Split <axis = 2> (x, parts) y = {GQA}> (q, k, v, , , last, total)"


def packed(body: str, more: str = "") -> str:
    return f"""main (float[2,3,128] x) => (float[2,3,64] y) <{LENGTHS}, int64[3] parts = {{64, 32, 32}}{more}>
        {{ {body} }}"""


def test_an_embedding_of_parts_of_one_value() -> None:
    body = f"q, k, v = Split <axis = 2> (x, parts) {TURN} {ATTEND}"
    after = f"y = {GQA}, do_rotary = 1, rotary_interleaved = 0> (x, , , , , last, total, c, s)"
    check_rewrites(PASS, packed(body, ZERO + tables()), after)


test_what_stays = keeps(
    PASS,
    [
        ("the positions do not count from 0", model(more=", int64[1] zero = {1}" + tables(4))),
        ("no row for each position", model(more=ZERO + tables(4))),
        ("in steps of 16", model(more=ZERO + tables(3, 4))
         .replace("<num_heads = 4> (q", "<num_heads = 4, rotary_embedding_dim = 8> (q")
         .replace("<num_heads = 2> (k", "<num_heads = 2, rotary_embedding_dim = 8> (k")),
        ("queries and keys have other tables", model(f"{TURN.replace('(k, zero, c, s)', '(k, zero, s, c)')} {ATTEND}")),
        ("interleaved", model(f"{TURN.replace('<num_heads = 2>', '<num_heads = 2, interleaved = 1>')} {ATTEND}")),
        ("scales or packs", model(f"{TURN.replace('<num_heads = 2>', '<num_heads = 2, scale = 2.0>')} {ATTEND}")),
        ("no RotaryEmbedding comes before", model(f"qr = Neg (q) kr = Neg (k) {ATTEND}")),
        ("not the parts of one value", packed(SPLIT.replace("q, k, v =", "q, v, k ="))),
    ],
)  # fmt: skip


def test_a_past_stays() -> None:
    body = f"{TURN} " + ATTEND.replace("y =", "y, o, p =").replace("v, , ,", "v, h, h,")
    text = model(body).replace("32] v)", "32] v, float[2,2,0,16] h)")
    check_keeps(PASS, text, "behind a past")

"""Rotary position embeddings become one node."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "rotary_embedding_fusion"
HEADS = "r = Reshape (x, split) h = Transpose <perm = [0, 2, 1, 3]> (r)"
TABLES = "d = Concat <axis = -1> (f, f) c = Cos (d) s = Sin (d) cu = Unsqueeze (c, one) su = Unsqueeze (s, one)"
TURN = "a, b = Split <axis = -1> (h, sizes) n = Neg (b) t = Concat <axis = -1> (n, a)"
SUM = "p = Mul (h, cu) q = Mul (t, su) y = Add (p, q)"
CONSTANTS = {
    "split": "int64[4] split = {0, 0, 2, 4}",
    "one": "int64[1] one = {1}",
    "sizes": "int64[2] sizes = {2, 2}",
    "uneven": "int64[2] uneven = {1, 3}",
    "three": "float three = {3}",
}
INPUTS = "float[2,3,8] x, float[2,3,2] f"
SIDE_BY_SIDE = """c = Cos (f) s = Sin (f) e = RotaryEmbedding <num_heads = 2> (x, c, s)
    w = Constant <value = int64[4] {0, 0, 2, 4}> () r = Reshape (e, w) y = Transpose <perm = [0, 2, 1, 3]> (r)"""


def model(
    body: str = SUM,
    *,
    heads: str = HEADS,
    tables: str = TABLES,
    turn: str = TURN,
    inputs: str = INPUTS,
    outputs: str = "float[2,2,3,4] y",
) -> str:
    text = f"{heads} {tables} {turn} {body}"
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = [constant for name, constant in CONSTANTS.items() if name in words]
    return f"main ({inputs}) => ({outputs}) <{', '.join(used)}> {{ {text} }}"


@pytest.mark.parametrize("total", ["Add (p, q)", "Add (q, p)"])
@pytest.mark.parametrize("plain", ["Mul (h, cu)", "Mul (cu, h)"])
@pytest.mark.parametrize("turned", ["Mul (t, su)", "Mul (su, t)"])
def test_orders(total: str, plain: str, turned: str) -> None:
    check_rewrites(PASS, model(f"p = {plain} q = {turned} y = {total}"), SIDE_BY_SIDE, opset=23)


SCALED = """d = Concat <axis = -1> (f, f) c = Cos (d) s = Sin (d) cm = Mul (c, three) sm = Mul (three, s)
    cu = Unsqueeze (cm, one) su = Unsqueeze (sm, one)"""


def test_tables_that_are_scaled() -> None:
    result = check_rewrites(PASS, model(tables=SCALED), ops={"RotaryEmbedding": 1, "Concat": 0, "Split": 0}, opset=23)
    assert sum(node.op_type == "Mul" for node in result.graph) == 2


OWN = "com.microsoft::RotaryEmbedding"


@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0), (0, 0), (1, 1), (3, 2)])
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("shared", [True, False])
def test_small_and_empty_sizes(batch: int, length: int, opset: int, shared: bool) -> None:
    table = f"float[{'1' if shared else 'B'},S,2] f"
    text = model(inputs=f"float[B,S,8] x, {table}", outputs="float[B,2,S,4] y")
    random = np.random.default_rng(0)
    x = random.standard_normal((batch, length, 8)).astype(np.float32)
    f = random.standard_normal((1 if shared else batch, length, 2)).astype(np.float32)
    standard = opset == 23 and not shared
    check_rewrites(PASS, text, ops={"RotaryEmbedding" if standard else OWN: 1}, opset=opset, inputs={"x": x, "f": f})

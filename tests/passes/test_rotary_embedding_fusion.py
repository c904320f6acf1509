"""Rotary position embeddings become one node."""

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


SCALED = """d = Concat <axis = -1> (f, f) c = Cos (d) s = Sin (d) cm = Mul (c, three) sm = Mul (three, s)
    cu = Unsqueeze (cm, one) su = Unsqueeze (sm, one)"""


def test_tables_that_are_scaled() -> None:
    result = check_rewrites(PASS, model(tables=SCALED), ops={"RotaryEmbedding": 1, "Concat": 0, "Split": 0}, opset=23)
    assert sum(node.op_type == "Mul" for node in result.graph) == 2

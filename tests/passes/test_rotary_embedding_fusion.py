"""Rotary position embeddings become one node."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

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


def test_heads_that_come_first() -> None:
    text = model(heads="h = Identity (x)", inputs="float[2,2,3,4] x, float[2,3,2] f")
    after = "h = Identity (x) c = Cos (f) s = Sin (f) y = RotaryEmbedding (h, c, s)"
    check_rewrites(PASS, text, after, opset=23)


def test_any_batch_and_length_0_among_them() -> None:
    text = model(inputs="float[B,S,8] x, float[B,S,2] f", outputs="float[B,2,S,4] y")
    check_rewrites(PASS, text, SIDE_BY_SIDE, opset=23)


SCALED = """d = Concat <axis = -1> (f, f) c = Cos (d) s = Sin (d) cm = Mul (c, three) sm = Mul (three, s)
    cu = Unsqueeze (cm, one) su = Unsqueeze (sm, one)"""


def test_tables_that_are_scaled() -> None:
    result = check_rewrites(PASS, model(tables=SCALED), ops={"RotaryEmbedding": 1, "Concat": 0, "Split": 0}, opset=23)
    assert sum(node.op_type == "Mul" for node in result.graph) == 2


LOOKED_UP = """k = Constant <value = float[3,4] {1,2,1,2,3,4,3,4,5,6,5,6}> () c = Gather (k, i) s = Neg (c)
    cu = Unsqueeze (c, one) su = Unsqueeze (s, one)"""


def test_tables_that_are_looked_up() -> None:
    text = model(tables=LOOKED_UP, inputs="float[2,3,8] x, int64[2,3] i")
    check_rewrites(PASS, text, ops={"RotaryEmbedding": 1, "Concat": 0, "Gather": 2}, opset=23)


def test_a_looked_up_table_with_different_halves() -> None:
    text = model(tables=LOOKED_UP.replace("5,6,5,6", "5,6,5,7"), inputs="float[2,3,8] x, int64[2,3] i")
    check_keeps(PASS, text, "the halves of a table are not known to be alike", opset=23)


def test_tables_without_an_unsqueeze() -> None:
    tables = "d = Concat <axis = -1> (f, f) cu = Cos (d) su = Sin (d)"
    text = model(tables=tables, inputs="float[2,3,8] x, float[2,1,3,2] f")
    check_rewrites(PASS, text, ops={"RotaryEmbedding": 1, "Squeeze": 2, "Split": 0}, opset=23)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("(f, f)", "(f, g)", "the halves of a table are not known to be alike"),
        ("(n, a)", "(a, n)", "the elements do not come in pairs"),
        ("n = Neg (b)", "n = Neg (a)", "the elements do not come in pairs"),
        ("n = Neg (b)", "n = Abs (b)", "the elements are not those of one value"),
        ("n = Neg (b)", "n = Identity (b)", "the pairs are not turned"),
        ("(h, sizes)", "(h, uneven)", "the elements do not come in pairs"),
        ("(h, sizes)", "(o, sizes)", "the elements are not those of one value"),
        ("cu = Unsqueeze (c, one)", "cu = Unsqueeze (c, one) u = Identity (p)", "used elsewhere"),
    ],
)
def test_what_is_something_else(before: str, after: str, reason: str) -> None:
    inputs = f"{INPUTS}, float[2,3,2] g, float[2,2,3,4] o"
    outputs = "float[2,2,3,4] y"
    text = model(inputs=inputs, outputs=outputs).replace(before, after)
    if "uneven" in after:
        text = text.replace("int64[2] sizes = {2, 2}", CONSTANTS["uneven"])
    if "u = Identity" in after:
        text = model(inputs=inputs, outputs=f"{outputs}, float[2,2,3,4] p")
    check_keeps(PASS, text, reason, opset=23)


SHARED = INPUTS.replace("float[2,3,2] f", "float[1,3,2] f")
OWN = "com.microsoft::RotaryEmbedding"


@pytest.mark.parametrize("opset", [17, 23])
def test_a_table_for_all_sequences(opset: int) -> None:
    check_rewrites(PASS, model(inputs=SHARED), ops={OWN: 1, "Split": 0, "Concat": 0}, opset=opset)


def test_a_table_for_all_sequences_and_heads_that_come_first() -> None:
    text = model(heads="h = Identity (x)", inputs="float[2,2,3,4] x, float[1,3,2] f")
    check_rewrites(PASS, text, ops={OWN: 1, "Split": 0, "Transpose": 0}, opset=17)


def test_a_table_for_all_sequences_of_any_length() -> None:
    text = model(inputs="float[B,S,8] x, float[1,S,2] f", outputs="float[B,2,S,4] y")
    check_rewrites(PASS, text, ops={OWN: 1, "Split": 0}, opset=17)


@pytest.mark.parametrize(("batch", "shapes"), [("2", 0), ("B", 1)])
def test_a_table_for_all_sequences_and_other_runtimes(batch: str, shapes: int) -> None:
    """The standard op has tables for each sequence only."""
    text = model(inputs=f"float[{batch},S,8] x, float[1,S,2] f", outputs=f"float[{batch},2,S,4] y")
    ops = {"RotaryEmbedding": 1, OWN: 0, "Expand": 2, "Shape": 2 * shapes}
    check_rewrites(PASS, text, ops=ops, opset=23, target="onnx")
    check_keeps(PASS, text, "no op of the ONNX specification", opset=22, target="onnx")


def test_a_table_of_another_batch() -> None:
    text = model(inputs="float[1,3,8] x, float[2,3,2] f")
    check_keeps(PASS, text, "a table is not known to have the batch size and length of the heads", opset=23)


@pytest.mark.parametrize("opset", [14, 22])
def test_older_opsets_have_an_op_of_onnxruntime(opset: int) -> None:
    check_rewrites(PASS, model(), ops={OWN: 1, "Split": 0, "Range": 1, "Concat": 2}, opset=opset)


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_older_opsets_and_any_batch_and_length_0_among_them(dtype: str) -> None:
    text = model(inputs="float[B,S,8] x, float[B,S,2] f", outputs="float[B,2,S,4] y")
    check_rewrites(PASS, text.replace("float[B", f"{dtype}[B"), ops={OWN: 1, "Split": 0}, opset=17)


def test_older_opsets_that_have_no_op() -> None:
    check_keeps(PASS, model(), "opset 13 has no RotaryEmbedding", opset=13)


def test_half_precision() -> None:
    text = model().replace("float[2,", "float16[2,")
    check_rewrites(PASS, text, ops={"RotaryEmbedding": 1, "Split": 0}, opset=23)


def test_double_precision_has_no_kernel() -> None:
    text = model().replace("float[2,", "double[2,")
    check_keeps(PASS, text, "RotaryEmbedding has no kernel for", opset=23)


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

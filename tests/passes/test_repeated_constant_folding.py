"""What repeats a constant along a free axis is computed once, and repeated then."""

import re

import pytest

from ortopt.testing import check_rewrites

PASS = "repeated_constant_folding"
CONSTANTS = {
    "c": "float[1,4] c = {1, 2, 3, 4}",
    "four": "int64[1] four = {4}",
    "one": "int64[1] one = {1}",
    "two": "int64[1] two = {2}",
    "last": "int64 last = {1}",
    "halves": "int64[3] halves = {0, 2, 2}",
    "rest": "int64[2] rest = {-1, 2}",
    "some": "int64[2] some = {2, -4}",
    "far": "int64[2] far = {2, 4}",
    "table": "float[2,4] table = {1, 2, 3, 4, 5, 6, 7, 8}",
    "g": "float[4] g = {1, 2, 3, 4}",
    "w": "float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}",
    "b": "float[2] b = {1, 2}",
    "k": "bool[4] k = {1, 0, 0, 1}",
    "z": "int64 z = {0}",
    "zero": "int64[1] zero = {0}",
    "i": "int64[1,4] i = {0, 1, 1, 0}",
}
START = """n = Shape <start: int = 0, end: int = 1> (x) s = Concat <axis: int = 0> (n, four)
    r = Expand (c, s) p = Sin (r) q = Cos (p) d = Abs (q)"""


def text(statements: str, result: str = "float[B,4]", start: str = START) -> str:
    body = f"{start} {statements}".replace("'", '"')
    used = set(re.findall(r"\w+", body))
    constants = ", ".join(declared for name, declared in CONSTANTS.items() if name in used)
    return f"main (float[B,4] x) => ({result} y) <{constants}> {{ {body} }}"


FOLDED = {
    "Mul": ("y = Mul (d, g)", "float[B,4]"),
    "Where": ("y = Where (k, d, c)", "float[B,4]"),
    "both": ("t = Add (p, d) y = Mul (t, q)", "float[B,4]"),
    "Unsqueeze": ("y = Unsqueeze (d, one)", "float[B,1,4]"),
    "Squeeze": ("t = Unsqueeze (d, one) y = Squeeze (t, one)", "float[B,4]"),
    "Transpose": ("y = Transpose <perm = [1, 0]> (d)", "float[4,B]"),
    "reversed": ("y = Transpose (d)", "float[4,B]"),
    "Reshape": ("y = Reshape (d, halves)", "float[B,2,2]"),
    "Flatten": ("t = Reshape (d, halves) y = Flatten (t)", "float[B,4]"),
    "Slice": ("y = Slice (d, one, four, one, two)", "float[B,2]"),
    "Gather": ("y = Gather <axis = 1> (d, some)", "float[B,2]"),
    "Concat": ("y = Concat <axis = 1> (d, q)", "float[B,8]"),
    "CumSum": ("y = CumSum (d, last)", "float[B,4]"),
    "Softmax": ("y = Softmax (d)", "float[B,4]"),
    "ReduceSum": ("y = ReduceSum <keepdims = 0> (d, one)", "float[B]"),
    "ReduceMax": ("y = ReduceMax (d, one)", "float[B,1]"),
    "LayerNormalization": ("y = LayerNormalization (d, g)", "float[B,4]"),
    "MatMul": ("y = MatMul (d, w)", "float[B,2]"),
    "Gemm": ("y = Gemm (d, w, b)", "float[B,2]"),
}


@pytest.mark.parametrize("case", FOLDED)
def test_folds(case: str) -> None:
    model = check_rewrites(PASS, text(*FOLDED[case]), opset=18)
    assert model.graph.outputs[0].producer().op_type == "Expand"  # the last node that still runs


ONES = """n = Shape <start: int = 0, end: int = 1> (x) s = Concat <axis: int = 0> (n, four)
    r = ConstantOfShape <value = float[1] {3}> (s) p = Sin (r) q = Cos (p) d = Abs (q)"""
MOVED = {
    "Slice": ("m = Shape <start: int = 1, end: int = 2> (x) y = Slice (d, one, m, one)", "float[B,3]"),
    "Gather": ("y = Gather <axis = 1> (d, some)", "float[B,2]"),
    "GatherElements": ("t = Cast <to = 7> (x) m = Mul (t, z) y = GatherElements <axis = 1> (d, m)", "float[B,4]"),
    "Concat": ("y = Concat <axis = 1> (d, r)", "float[B,8]"),
    "Resize": (
        "t = Reshape (d, halves) u = Unsqueeze (t, one)"
        " l = Concat <axis = 0> (n, one, four, four) y = Resize <mode = 'nearest'> (u, , , l)",
        "float[B,1,4,4]",
    ),
}


@pytest.mark.parametrize("case", MOVED)
def test_moves_one_number(case: str) -> None:
    model = check_rewrites(PASS, text(*MOVED[case], start=ONES), opset=18)
    assert model.graph.outputs[0].producer().op_type == "Expand"


def test_looks_rows_up() -> None:
    start = """n = Shape <start: int = 0, end: int = 1> (x) s = Concat <axis: int = 0> (n, four)
        r = ConstantOfShape <value = int64[1] {1}> (s) p = Gather (table, r)"""
    model = check_rewrites(PASS, text("q = Sin (p) d = Abs (q) y = Neg (d)", "float[B,4,4]", start), opset=18)
    assert model.graph.outputs[0].producer().op_type == "Expand"

"""A Gather by numbers that count is a Slice, or nothing; negative ones count from the end, and bounds do not."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "gather_to_slice_fusion"


@pytest.mark.parametrize(
    ("indices", "bounds"),
    [
        ("{1, 2, 3}", (1, 4, 1)),
        ("{0, 2, 4}", (0, 5, 2)),
        ("{4, 3, 2}", (4, 1, -1)),
        ("{2, 1, 0}", (2, -(2**63), -1)),
        ("{-3, -2, -1}", (-3, 2**63 - 1, 1)),
        ("{-1, -2, -3}", (-1, -4, -1)),
        ("{-5, -4, -3}", (-5, -2, 1)),
    ],
)
def test_constants_that_count(indices: str, bounds: tuple[int, int, int]) -> None:
    start, end, step = bounds
    model = check_rewrites(
        PASS,
        f"main (float[2,5] x) => (float[2,3] y) <int64[3] i = {indices}> {{ y = Gather <axis = 1> (x, i) }}",
        ops={"Gather": 0, "Slice": 1},
    )
    given = [value.const_value.numpy().tolist() for value in model.graph[0].inputs[1:]]
    assert given == [[start], [end], [1], [step]]


RANGE = """main (float[A,B] x, float[L] l) => (float[P,Q] y) <int64 s = {START}, int64 one = {1}, int64[1] axes = {0}> {
    n = Shape (l) k = Squeeze (n, axes) i = Range (s, END, one) y = Gather (x, i) }"""


def test_onnx_runtimes_mistake() -> None:
    """ORT makes a Slice from -2 to 0 of Range(-2, 0, 1), which is empty."""
    text = RANGE.replace("float[L] l", "float[L] l, int64 e").replace("START", "-2").replace("END", "e")
    check_keeps(PASS, text, "an index may be negative")
    known = text.replace("n = Shape (l) k = Squeeze (n, axes)", "").replace("int64 one", "int64 e = {0}, int64 one")
    known = known.replace(", int64 e)", ")").replace(", int64[1] axes = {0}", "").replace(", float[L] l", "")
    model = check_rewrites(PASS, known, inputs={"x": np.arange(12, dtype=np.float32).reshape(4, 3)})
    slices = [node for node in model.graph if node.op_type == "Slice"]
    assert slices[0].inputs[2].const_value.numpy().tolist() == [2**63 - 1]


MASK = """main (int64[B,S] ids, bool[B,{columns}] mask) => (bool[B,U,V,W] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] first = {{0}}, int64[3] rows = {{1, 2, 3}}, int64[3] columns = {{0, 1, 2}},
     int64[1] minus = {{-1}}> {{
    bs = Shape <start = 0, end = 1> (ids) b = Squeeze (bs, first)
    ss = Shape <start = 1, end = 2> (ids) s = Squeeze (ss, first)
    rb = Range (zero, b, one) i = Unsqueeze (rb, rows)
    rs = Range (zero, s, one) j = Unsqueeze (rs, columns)
    {body} }}"""  # noqa: E501
BY_COORDINATES = """big = Max (i, j) shape = Shape (big)
    ie = Expand (i, shape) je = Expand (j, shape) iu = Unsqueeze (ie, minus) ju = Unsqueeze (je, minus)
    c = Concat <axis = -1> (iu, ju) y = GatherND (mask, c)"""
BY_ROWS = """ms = Shape <start = 1, end = 2> (mask) m = Squeeze (ms, first) r = Mul (i, m) k = Add (r, j) f = Flatten <axis = 2> (mask) g = Gather (f, k)
    shape = Shape (k) h = Reshape (g, minus) y = Reshape (h, shape)"""  # noqa: E501
FED = {"ids": np.zeros((2, 3), np.int64)}
FULL = np.ones((2, 4), bool)


@pytest.mark.parametrize("body", [BY_COORDINATES, BY_ROWS])
def test_no_rows_have_as_many_columns_as_there_are_indices(body: str) -> None:
    empty = {"ids": np.zeros((0, 5), np.int64), "mask": np.zeros((0, 3), bool)}
    text = MASK.format(columns="P", body=body)
    check_rewrites(PASS, text, ops={"Slice": 1, "Reshape": 1, "Concat": 1}, inputs=empty)
    check_rewrites(PASS, text.replace("B,", "2,"), ops={"Slice": 1, "Reshape": 0}, inputs={**FED, "mask": FULL})


def test_keeps_an_index_that_a_caller_may_change() -> None:
    text = '<ir_version: 10, opset_import: ["" : 17]> main (float[5] x, int64[3] i) => (float[3] y) <int64[3] i = {1, 2, 3}> { y = Gather (x, i) }'  # noqa: E501
    changed, _ = run(PASS, parse(text))
    assert not changed

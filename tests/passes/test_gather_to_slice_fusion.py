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


@pytest.mark.parametrize("axis", [0, -2])
def test_axes_between(axis: int) -> None:
    check_rewrites(
        PASS,
        f"main (float[5,2] x) => (float[1,3,1,2] y) <int64[1,3,1] i = {{1, 2, 3}}> {{ y = Gather <axis = {axis}> (x, i) }}",  # noqa: E501
        ops={"Gather": 0, "Slice": 1, "Unsqueeze": 1},
    )


def test_all_of_them() -> None:
    check_rewrites(
        PASS,
        "main (float[N,3] x) => (float[N,3] y) <int64[3] i = {0, 1, 2}> { t = Gather <axis = 1> (x, i) y = Neg (t) }",
        "main (float[N,3] x) => (float[N,3] y) { y = Neg (x) }",
    )


RANGE = """main (float[A,B] x, float[L] l) => (float[P,Q] y) <int64 s = {START}, int64 one = {1}, int64[1] axes = {0}> {
    n = Shape (l) k = Squeeze (n, axes) i = Range (s, END, one) y = Gather (x, i) }"""


def test_by_a_range_of_unknown_length() -> None:
    check_rewrites(
        PASS,
        RANGE.replace("START", "2").replace("END", "k"),
        ops={"Gather": 0, "Range": 0, "Slice": 1},
        inputs={"x": np.arange(24, dtype=np.float32).reshape(8, 3), "l": np.zeros(5, np.float32)},
    )


def test_by_a_range_whose_end_has_an_axis() -> None:
    """ONNX Runtime takes one element of any shape."""
    text = RANGE.replace("k = Squeeze (n, axes) ", "").replace("START", "0").replace("END", "n")
    text = text.replace(", int64[1] axes = {0}", "")
    inputs = {"x": np.arange(24, dtype=np.float32).reshape(8, 3), "l": np.zeros(5, np.float32)}
    check_rewrites(PASS, text, ops={"Gather": 0, "Range": 0, "Slice": 1, "Unsqueeze": 0}, inputs=inputs)


def test_onnx_runtimes_mistake() -> None:
    """ORT makes a Slice from -2 to 0 of Range(-2, 0, 1), which is empty."""
    text = RANGE.replace("float[L] l", "float[L] l, int64 e").replace("START", "-2").replace("END", "e")
    check_keeps(PASS, text, "an index may be negative")
    known = text.replace("n = Shape (l) k = Squeeze (n, axes)", "").replace("int64 one", "int64 e = {0}, int64 one")
    known = known.replace(", int64 e)", ")").replace(", int64[1] axes = {0}", "").replace(", float[L] l", "")
    model = check_rewrites(PASS, known, inputs={"x": np.arange(12, dtype=np.float32).reshape(4, 3)})
    slices = [node for node in model.graph if node.op_type == "Slice"]
    assert slices[0].inputs[2].const_value.numpy().tolist() == [2**63 - 1]


def test_keeps_a_range_that_may_start_below_zero() -> None:
    text = RANGE.replace("START", "-2").replace("END", "k")
    check_keeps(PASS, text, "an index may be negative")


@pytest.mark.parametrize(
    ("because", "indices"),
    [
        ("from the last element on to the first", "int64[3] i = {-1, 0, 1}"),
        ("it takes one element", "int64[1] i = {1}"),
        ("it takes one element", "int64 i = {1}"),
        ("it takes one element", "int64[2] i = {1, 1}"),
        ("the indices are not known", "int64[3] i = {0, 1, 3}"),
        ("the indices are not known", "int32[3] i = {1, 2, 3}"),
        ("so many elements", "int64[2] i = {9223372036854775806, 9223372036854775807}"),
        ("so many elements", "int64[2] i = {-9223372036854775807, -9223372036854775808}"),
        ("the indices count along many axes", "int64[2,2] i = {0, 1, 1, 2}"),
    ],
)
def test_keeps(because: str, indices: str) -> None:
    text = f"main (float[5,3,2] x) => (float[A,B,C] y) <{indices}> {{ y = Gather (x, i) }}"
    if "along many axes" in because:
        check_keeps(PASS, text.replace("[A,B,C]", "[A,B,C,D]"))
        return
    rank = 2 if "int64 i" in indices else 3
    check_keeps(PASS, text.replace("[A,B,C]", "[A,B,C]"[: 2 * rank] + "]"), because)


def test_keeps_shape_arithmetic() -> None:
    check_keeps(
        PASS,
        "main (float[A,B,C,D] x) => (int64[2] y) <int64[2] i = {1, 2}> { s = Shape (x) y = Gather (s, i) }",
        "shape arithmetic",
    )


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
def test_a_mask_for_all_positions(body: str) -> None:
    check_rewrites(
        PASS,
        MASK.format(columns="S", body=body),
        ops={"Gather": 0, "GatherND": 0, "Range": 0, "Unsqueeze": 1, "Slice": 0},
        inputs={**FED, "mask": np.array([[True, False, True], [False, True, True]])},
    )


@pytest.mark.parametrize("body", [BY_COORDINATES, BY_ROWS])
def test_a_mask_for_the_first_positions(body: str) -> None:
    check_rewrites(
        PASS,
        MASK.format(columns="P", body=body),
        ops={"Gather": 0, "GatherND": 0, "Range": 0, "Slice": 1},
        inputs={**FED, "mask": np.array([[True, False, True, False], [False, True, True, True]])},
    )


@pytest.mark.parametrize("body", [BY_COORDINATES, BY_ROWS])
def test_no_rows_have_as_many_columns_as_there_are_indices(body: str) -> None:
    empty = {"ids": np.zeros((0, 5), np.int64), "mask": np.zeros((0, 3), bool)}
    text = MASK.format(columns="P", body=body)
    check_rewrites(PASS, text, ops={"Slice": 1, "Reshape": 1, "Concat": 1}, inputs=empty)
    check_rewrites(PASS, text.replace("B,", "2,"), ops={"Slice": 1, "Reshape": 0}, inputs={**FED, "mask": FULL})


@pytest.mark.parametrize(
    ("because", "body"),
    [
        ("in another order", BY_COORDINATES.replace("(iu, ju)", "(ju, iu)")),
        ("a coordinate does not count up", BY_COORDINATES.replace("big =", "j2 = Add (j, one) big =").replace("Expand (j,", "Expand (j2,")),  # noqa: E501
        ("row times columns", BY_ROWS.replace("Mul (i, m)", "Mul (i, s)")),
        ("row times columns", BY_ROWS.replace("Add (r, j)", "Add (r, j1)").replace("r =", "j1 = Add (j, one) r =")),
        ("takes batches", BY_COORDINATES.replace("GatherND", "GatherND <batch_dims = 1>").replace("(iu, ju)", "(ju)")),
    ],
)  # fmt: skip
def test_keeps_masks(because: str, body: str) -> None:
    check_keeps(PASS, MASK.format(columns="P", body=body), because)


def test_in_old_opsets() -> None:
    check_rewrites(
        PASS,
        "main (float[5,2] x) => (float[1,3,2] y) <int64[1,3] i = {1, 2, 3}> { y = Gather (x, i) }",
        ops={"Slice": 1, "Unsqueeze": 1},
        opset=11,
    )


def test_keeps_in_a_function_whose_opset_has_another_unsqueeze() -> None:
    """ONNX Runtime reads a function's nodes by the model's opset."""
    check_keeps(
        PASS,
        """<ir_version: 10, opset_import: ["" : 14, "own" : 1]>
        main (float[5] x, int64[1,3] i) => (float[1,3] y) { y = own.f (x) }
        <domain: "own", opset_import: ["" : 11]> f (x) => (y) {
            i = Constant <value = int64[1,3] {1, 2, 3}> () y = Gather (x, i) }""",
        "differs between opset 11 of the function and opset 14 of the model",
    )


def test_keeps_an_index_that_a_caller_may_change() -> None:
    text = '<ir_version: 10, opset_import: ["" : 17]> main (float[5] x, int64[3] i) => (float[3] y) <int64[3] i = {1, 2, 3}> { y = Gather (x, i) }'  # noqa: E501
    changed, _ = run(PASS, parse(text))
    assert not changed

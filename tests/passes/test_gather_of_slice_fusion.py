"""The rows of the first positions are the first rows."""

import numpy as np

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "gather_of_slice_fusion"
TEXT = """main (int64[B,S] ids, float[B,S,2] x) => (float[B,S,2] y)
    <float[4,2] table = {1, 2, 3, 4, 5, 6, 7, 8}, int64[1,4] all = {0, 1, 2, 3}, int64[1] zero = {0}, int64[1] one = {1}> {
    s = Shape <start = 1, end = 2> (ids) p = Slice (all, zero, s, one, one) e = Gather (table, p) y = Add (e, x) }"""  # noqa: E501
FED = {"ids": np.zeros((2, 3), np.int64), "x": np.ones((2, 3, 2), np.float32)}


def test_goes() -> None:
    check_rewrites(PASS, TEXT, ops={"Gather": 0, "Slice": 1}, inputs=FED)


def test_without_axes_and_with_negative_ones() -> None:
    flat = (
        TEXT.replace("[1,4] all", "[4] all").replace("zero, s, one, one", "zero, s").replace(", int64[1] one = {1}", "")
    )
    check_rewrites(PASS, flat, ops={"Gather": 0, "Slice": 1}, inputs=FED)
    last = TEXT.replace("one, one)", "minus, one)").replace("int64[1] one", "int64[1] minus = {-1}, int64[1] one")
    check_rewrites(PASS, last, ops={"Gather": 0, "Slice": 1}, inputs=FED)


def test_along_another_axis_of_the_table() -> None:
    check_rewrites(
        PASS,
        """main (int64[S] ids) => (float[2,S] y) <float[2,3] t = {1, 2, 3, 4, 5, 6}, int64[3] all = {0, 1, 2}, int64[1] zero = {0}> {
            s = Shape (ids) p = Slice (all, zero, s) y = Gather <axis = -1> (t, p) }""",  # noqa: E501
        ops={"Gather": 0, "Slice": 1},
        inputs={"ids": np.zeros(2, np.int64)},
    )


test_keeps = keeps(
    PASS,
    [
        ("in another order", TEXT.replace("{0, 1, 2, 3}", "{0, 1, 3, 2}")),
        ("in another order", TEXT.replace("{0, 1, 2, 3}", "{-4, -3, -2, -1}")),
        ("no slice of all rows", TEXT.replace("[1,4] all = {0, 1, 2, 3}", "[1,3] all = {0, 1, 2}")),
        ("used elsewhere", TEXT.replace("y)\n", "y, int64[A,C] p)\n")),
        ("not a constant", TEXT.replace("float[B,S,2] x)", "float[B,S,2] x, float[4,2] table)").replace("float[4,2] table = {1, 2, 3, 4, 5, 6, 7, 8}, ", "")),  # noqa: E501
        ("not a constant", TEXT.replace("float[B,S,2] x)", "float[B,S,2] x, int64[1] axes)").replace("s, one, one", "s, axes, one")),  # noqa: E501
    ],
)  # fmt: skip


def test_in_a_branch_and_in_a_function() -> None:
    check_rewrites(
        PASS,
        """main (bool c, int64[S] ids) => (float[A,2] y)
            <float[3,2] t = {1, 2, 3, 4, 5, 6}, int64[3] all = {0, 1, 2}, int64[1] zero = {0}> {
            s = Shape (ids)
            y = If (c) <then_branch = p () => (o) { i = Slice (all, zero, s) o = Gather (t, i) },
                        else_branch = q () => (r) { r = Gather (t, ids) }> }""",
        ops={"Gather": 1, "Slice": 1},
        inputs={"c": np.array(True), "ids": np.zeros(2, np.int64)},
    )
    check_rewrites(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        main (int64[S] ids) => (float[S,2] y) { y = own.f (ids) }
        <domain: "own", opset_import: ["" : 17]> f (ids) => (y) {
            t = Constant <value = float[3,2] {1, 2, 3, 4, 5, 6}> () all = Constant <value_ints = [0, 1, 2]> ()
            zero = Constant <value_ints = [0]> () s = Shape (ids) i = Slice (all, zero, s) y = Gather (t, i) }""",
        ops={"Gather": 0, "Slice": 1},
        inputs={"ids": np.zeros(2, np.int64)},
    )

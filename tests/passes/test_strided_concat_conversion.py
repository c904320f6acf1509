"""Blocks of pixels whose channels are joined, channels last: one Transpose instead of Slices with steps."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse, run
from tests.passes.tables import keeps

PASS = "strided_concat_conversion"
LONG = 2**63 - 1
CONSTANTS = f"""int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] long = {{{LONG}}}, int64[1] h = {{1}},
    int64[1] w = {{2}}, int64[1] two = {{2}}"""


def merging(
    order: str = "a, b, c, d", x: str = "float[B,4,6,3]", end: str = "long", axis: int = -1, more: str = ""
) -> str:
    """Every other row and column of an image, as Swin takes them."""
    return f"""main ({x} x) => (float[] y{more and ", float[] z"}) <{CONSTANTS}> {{
        even = Slice (x, zero, long, h, two) odd = Slice (x, one, long, h, two)
        a = Slice (even, zero, {end}, w, two) b = Slice (odd, zero, long, w, two)
        c = Slice (even, one, long, w, two) d = Slice (odd, one, long, w, two)
        k = Concat <axis = {axis}> ({order}) y = Neg (k) {more} }}"""


def after(view: str, x: str = "float[B,4,6,3]", shape: str = "-1, 2, 3, 12") -> str:
    """The rows of a block are brought behind the columns."""
    return f"""main ({x} x) => (float[] y) <int64[4] v = {{{view}}}, int64[4] s = {{{shape}}}> {{
        r = Reshape (x, v) t = Transpose <perm = [0, 2, 1, 3]> (r) k = Reshape (t, s) y = Neg (k) }}"""


def test_column_by_column() -> None:
    check_rewrites(PASS, merging(), after("-1, 2, 6, 3"))


def test_row_by_row() -> None:
    check_rewrites(PASS, merging("a, c, b, d"), after("-1, 2, 3, 6"))


def test_an_end_before_the_last_column() -> None:
    five = merging(end="five").replace("int64[1] two", "int64[1] five = {5}, int64[1] two")
    check_rewrites(PASS, five, after("-1, 2, 6, 3"))


def test_one_slice_of_both_axes() -> None:
    text = f"""main (float[2,2,4,3] x) => (float[] y) <int64[2] zero = {{0, 0}}, int64[2] row = {{1, 0}},
        int64[2] column = {{0, 1}}, int64[2] both = {{1, 1}}, int64[2] long = {{{LONG}, 4}}, int64[2] axes = {{1, -2}},
        int64[2] two = {{2, 2}}> {{
        a = Slice (x, zero, long, axes, two) b = Slice (x, row, long, axes, two)
        c = Slice (x, column, long, axes, two) d = Slice (x, both, long, axes, two)
        k = Concat <axis = 3> (a, b, c, d) y = Neg (k) }}"""
    after = """main (float[2,2,4,3] x) => (float[] y) <int64[4] s = {2, 1, 2, 12}> {
        t = Transpose <perm = [0, 2, 1, 3]> (x) k = Reshape (t, s) y = Neg (k) }"""
    check_rewrites(PASS, text, after)


def test_parts_that_others_take_otherwise() -> None:
    """By Split and Gather, one after another, of a value that is another shape of the image."""
    text = """main (float[B,24,3] x) => (float[] y) <int64[5] s = {0, 2, 2, 6, 3}, int64[3] e = {0, 2, 4},
        int64[3] o = {1, 3, 5}, int64[1] i = {2}> {
        v = Reshape (x, s) p, q = Split <axis = 2> (v) even = Squeeze (p, i) odd = Squeeze (q, i)
        a = Gather <axis = 2> (even, e) b = Gather <axis = 2> (odd, e)
        c = Gather <axis = 2> (even, o) d = Gather <axis = 2> (odd, o)
        k = Concat <axis = -1> (a, b, c, d) y = Neg (k) }"""
    check_rewrites(PASS, text, ops={"Transpose": 1, "Concat": 0, "Gather": 0, "Split": 0})


@pytest.mark.parametrize("order", ["columns", "rows"])
def test_blocks_of_three(order: str) -> None:
    lines, names = [], []
    for outer in range(3):
        for inner in range(3):
            row, column = (inner, outer) if order == "columns" else (outer, inner)
            lines.append(
                f"s{row}{column} = Constant <value_ints = [{row}, {column}]> () p{row}{column} = Slice (x, s{row}{column}, e, a, t)"  # noqa: E501
            )
            names.append(f"p{row}{column}")
    text = f"""main (float[2,6,3,2] x) => (float[] y) <int64[2] e = {{6, 3}}, int64[2] a = {{1, 2}}, int64[2] t = {{3, 3}}> {{
        {" ".join(lines)} k = Concat <axis = 3> ({", ".join(names)}) y = Neg (k) }}"""  # noqa: E501
    if order == "columns":
        check_rewrites(PASS, text, after("4, 3, 3, 2", "float[2,6,3,2]", "2, 2, 1, 18"))
    else:  # then nothing moves
        check_rewrites(PASS, text, ops={"Reshape": 1, "Concat": 0, "Slice": 0})


def test_no_images() -> None:
    changed = parse(merging())
    assert run(PASS, changed)[0]
    x = np.zeros((0, 4, 6, 3), np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    shapes = [
        ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].shape
        for model in (parse(merging()), changed)
    ]
    assert shapes == [(0, 2, 3, 12)] * 2


NO_PARTS = "it joins no parts of one value in an order of theirs"
KEPT = [
    ("it does not join the last axis", merging(axis=1)),
    (NO_PARTS, merging("a, b, c")),
    (NO_PARTS, merging("a, b, c, c")),
    ("elements of an axis are taken apart", merging("d, b, c, a")),
    ("a part is used elsewhere", merging(more="z = Abs (c)")),
    (NO_PARTS, merging(x="float[B,4,W,3]")),
    ("no Transpose does the same", merging(x="float[B,4,6,C]")),
    ("a bound is computed", merging(x="float[B,4,6,0]")),
    ("the gain was measured for single precision only", merging(x="double[B,4,6,3]").replace("float", "double")),
    (NO_PARTS, merging(x="float[B,4,6,3] z0, float[B,4,6,3]").replace("odd = Slice (x", "odd = Slice (z0")),
    (NO_PARTS, merging(end="four").replace("int64[1] two", "int64[1] four = {4}, int64[1] two")),
    (NO_PARTS, merging().replace("one = {1}", "one = {2}")),
    (NO_PARTS, merging("a, b, c, d, a, b, c, d, a")),
    (NO_PARTS, merging(x="float[B,5,6,3]")),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)

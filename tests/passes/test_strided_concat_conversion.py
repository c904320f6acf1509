"""Blocks of pixels whose channels are joined, channels last: one Transpose instead of Slices with steps."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse, run

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

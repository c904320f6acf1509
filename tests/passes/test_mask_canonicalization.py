"""Masks of causal language models become one choice; numbers that could meet, and other diagonals, are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "mask_canonicalization"


def triangle(
    *,
    start: str = "n",
    end: str = "t",
    comparison: str = "Greater (c, q)",
    diagonal: int = 1,
    number: str = "-1000.0",
    then: str = "m = Mul (w, b) y = Softmax (m)",
) -> str:
    """The mask of S queries behind P keys and S of their own."""
    return f"""main (float[S,D] x, float[P,D] p) => (float[A,B] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 k = {{{diagonal}}}, int64[2] column = {{-1, 1}},
        int64[1] first = {{0}}> {{
        sx = Shape (x) s = Gather (sx, zero) sp = Shape (p) n = Gather (sp, zero) t = Add (s, n)
        c = Range (zero, t, one) r = Range ({start}, {end}, one) q = Reshape (r, column) g = {comparison}
        b = Cast <to = 1> (g) u = Unsqueeze (s, first) v = Unsqueeze (t, first) z = Concat <axis = 0> (u, v)
        f = ConstantOfShape <value = float[1] {{{number}}}> (z) w = Trilu <upper = 1> (f, k) {then} }}"""


SIZES = {"x": np.ones((3, 2), np.float32), "p": np.ones((4, 2), np.float32)}


@pytest.mark.parametrize(
    ("comparison", "diagonal"),
    [("Greater (c, q)", 1), ("Greater (c, q)", 0), ("Less (q, c)", 1), ("LessOrEqual (q, c)", 0)],
)
def test_a_triangle_and_a_comparison(comparison: str, diagonal: int) -> None:
    check_rewrites(
        PASS,
        triangle(comparison=comparison, diagonal=diagonal),
        ops={"Trilu": 0, "Mul": 0, "Cast": 0, "ConstantOfShape": 0, "Where": 1},
        inputs=SIZES,
    )

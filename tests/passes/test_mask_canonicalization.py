"""Masks of causal language models become one choice; numbers that could meet, and other diagonals, are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

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


def test_without_keys_before() -> None:
    text = triangle(start="zero", end="s", then="y = Mul (w, b)")
    check_rewrites(PASS, text, ops={"Trilu": 0, "Where": 1}, inputs=SIZES)


def test_masked_scores() -> None:
    then = """m = Mul (w, b) a = Unsqueeze (m, first) d = Add (a, a) i = Equal (d, d) j = Where (i, d, a)
        h = Softmax (j) y = Squeeze (h, first)"""
    check_rewrites(PASS, triangle(then=then), ops={"Trilu": 0, "Where": 2}, inputs=SIZES)


test_other_triangles = keeps(
    PASS,
    [
        ("the sign of a zero shows", triangle(then="y = Mul (w, b)")),
        ("the sign of a zero shows", triangle(then="m = Mul (w, b) n0 = Reciprocal (m) y = Softmax (n0)")),
        ("outside of the triangle", triangle(diagonal=2)),
        ("outside of the triangle", triangle(comparison="LessOrEqual (q, c)")),
        ("outside of the triangle", triangle(comparison="Less (c, q)")),
        ("not finite", triangle(number="-inf")),
        ("a lower triangle", triangle().replace("upper = 1", "upper = 0")),
        ("no Greater or GreaterOrEqual or Less or LessOrEqual comes before", triangle(comparison="Equal (c, q)")),
        ("differ in size", triangle(end="n").replace("Range (n, n, one)", "Range (zero, one, one)")),
    ],
)


def test_rows_that_begin_below_the_diagonal() -> None:
    text = triangle(start="less", end="more").replace(
        "c = Range", "less = Sub (zero, n) more = Sub (s, n) c = Range"
    )  # past the diagonal the comparison holds as well
    check_keeps(PASS, text, "outside of the triangle")


PADDED = """main (bool[S,T] g, int64[B,T] kept) => (float[B,1,S,T] y)
    <float big = {-1e38}, float none = {0}, int64[2] two = {0, 1}, int64[2] keys = {1, 2}> {
    w = Where (g, big, none) m = Unsqueeze (w, two) u = Unsqueeze (kept, keys) a = Cast <to = 1> (u)
    s = Add (m, a) e = Equal (s, none) y = Where (e, big, m) }"""
GIVEN = {
    "g": np.array([[False, True, True], [False, False, True]]),
    "kept": np.array([[1, 1, 0], [0, 1, 1]], np.int64),
}


def test_padding() -> None:
    check_rewrites(
        PASS,
        PADDED,
        """u = Unsqueeze (kept, keys) m = Unsqueeze (g, two) z = Constant <value = int64 {0}> () a = Equal (u, z)
            o = Or (m, a) y = Where (o, big, none)""",
        inputs=GIVEN,
    )


def test_integers_that_are_no_zeros_and_ones() -> None:
    given = {**GIVEN, "kept": np.array([[7, -1, 0], [0, -(2**63), 2**63 - 1]], np.int64)}
    check_rewrites(PASS, PADDED, ops={"Or": 1, "Add": 0}, inputs=given)


@pytest.mark.parametrize(
    ("kind", "ops"),
    [("bool", {"Not": 1, "Cast": 0}), ("int32", {"Equal": 1, "Cast": 0}), ("uint8", {"Not": 1, "Cast": 1})],
)
def test_kinds_of_padding(kind: str, ops: dict[str, int]) -> None:
    given = {**GIVEN, "kept": GIVEN["kept"].astype(kind)}
    check_rewrites(PASS, PADDED.replace("int64[B,T]", f"{kind}[B,T]"), ops=ops, inputs=given)


def test_a_cast_that_is_moved() -> None:
    text = PADDED.replace(
        "u = Unsqueeze (kept, keys) a = Cast <to = 1> (u)", "u = Cast <to = 1> (kept) a = Unsqueeze (u, keys)"
    )
    check_rewrites(PASS, text.replace("s = Add (m, a)", "s = Add (a, m)"), ops={"Or": 1, "Cast": 0}, inputs=GIVEN)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("big = {-1e38}", "big = {-8}", "an integer may sum up to 0"),
        ("Equal (s, none)", "Equal (s, big)", "not compared with 0"),
        ("y = Where (e, big, m)", "y = Where (e, none, m)", "another number is chosen than the mask's"),
        ("Where (g, big, none)", "Where (g, none, big)", "the mask is nowhere 0"),
        ("y = Where (e, big, m)", "y = Where (e, big, a)", "comes before"),
        ("s = Add (m, a)", "s = Add (a, a)", "what is chosen is not in the sum"),
        ("(float[B,1,S,T] y)", "(float[B,1,S,T] y, float[B,1,S,T] s)", "the sum is used elsewhere"),
        ("(float[B,1,S,T] y)", "(float[B,1,S,T] y, bool[B,1,S,T] e)", "the comparison is used elsewhere"),
        ("float none = {0}", "float[1,1,1] none = {0}", "its numbers have more elements than its condition"),
    ],
)
def test_other_sums(old: str, new: str, reason: str) -> None:
    check_keeps(PASS, PADDED.replace(old, new), reason)


def test_floats_that_are_added() -> None:
    text = PADDED.replace("int64[B,T] kept", "double[B,T] kept")
    check_keeps(PASS, text, "what is added comes from no integers")


AGAIN = """main (bool[S,T] g) => (float[N,T] y)
    <float big = {-1e38}, float none = {0}, float low = {-inf}, int64[1] from = {0}, int64[1] to = {1}> {
    w = Where (g, big, none) m = Slice (w, from, to) e = Equal (m, big) y = Where (e, low, m) }"""


@pytest.mark.parametrize(("tested", "after"), [("big", "low, none"), ("none", "big, low")])
def test_a_choice_that_is_looked_at(tested: str, after: str) -> None:
    check_rewrites(
        PASS,
        AGAIN.replace("Equal (m, big)", f"Equal (m, {tested})"),
        f"m = Slice (g, from, to) y = Where (m, {after})",
        inputs={"g": GIVEN["g"]},
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Equal (m, big)", "Equal (m, low)", "does not tell its numbers apart"),
        ("Equal (m, big)", "Equal (big, big)", "comes before"),
        ("(float[N,T] y)", "(float[N,T] y, float[N,T] m)", "the mask is used elsewhere"),
        ("e = Equal (m, big)", "h = Exp (m) e = Equal (h, big)", "comes before"),
    ],
)
def test_other_choices(old: str, new: str, reason: str) -> None:
    check_keeps(PASS, AGAIN.replace(old, new), reason)

"""Powers that have an op of their own; never where a number would be another one."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "pow_canonicalization"
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -3.5, 7.0], np.float32)


@pytest.mark.parametrize("exponent", ["float e = {2}", "float[1] e = {2}", "int64 e = {2}", "double e = {2}"])
def test_squares(exponent: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[N] x) => (float[N] y) <{exponent}> {{ y = Pow (x, e) }}",
        "main (float[N] x) => (float[N] y) { y = Mul (x, x) }",
        inputs={"x": SPECIAL},
    )


@pytest.mark.parametrize("kind", ["int32", "int64", "double"])
def test_squares_of_other_types(kind: str) -> None:
    top = np.array([[3, -5], [2**31 - 1, 46341]], kind.replace("double", "float64"))
    text = f"main ({kind}[N,2] x) => ({kind}[N,2] y) <{kind} e = {{2}}> {{ y = Pow (x, e) }}"
    check_rewrites(PASS, text, ops={"Mul": 1}, inputs={"x": top})


def test_reciprocals() -> None:
    check_rewrites(
        PASS,
        "main (float[N] x) => (float[N] y) <float e = {-1}> { y = Pow (x, e) }",
        "main (float[N] x) => (float[N] y) { y = Reciprocal (x) }",
        inputs={"x": SPECIAL},
    )


@pytest.mark.parametrize(
    "above",
    [
        "p = Abs (x)",
        "p = Mul (x, x)",
        "p = Pow (x, four)",
        "a = Exp (x) p = Add (a, e)",
        "a = Mul (x, x) b = ReduceMean <axes = [0]> (a) p = Add (b, e)",
    ],
)
def test_roots_of_what_is_not_negative(above: str) -> None:
    four = ", float four = {4}" if "four" in above else ""
    check_rewrites(
        PASS,
        f"main (float[4] x) => (float[A] y) <float e = {{0.5}}{four}> {{ {above} y = Pow (p, e) }}",
        ops={"Sqrt": 1},
        inputs={"x": np.array([0.0, -0.0, -2.0, 3.0], np.float32)},
    )


@pytest.mark.parametrize("above", ["p = Identity (x)", "p = Relu (x)", "p = Sub (x, e)", "a = Abs (x) p = Add (a, x)"])
def test_keeps_roots_of_what_may_be_negative(above: str) -> None:
    """``Pow(-inf, ½)`` is inf, and ``Pow(-0.0, ½)`` +0.0."""
    text = f"main (float[4] x) => (float[4] y) <float e = {{0.5}}> {{ {above} y = Pow (p, e) }}"
    check_keeps(PASS, text, "may be negative, or -0.0")


def test_keeps_the_square_of_a_normalization() -> None:
    text = "main (float[N,4] x) => (float[N,1] y) <float e = {2}> { p = Pow (x, e) y = ReduceMean <axes = [1]> (p) }"
    check_keeps(PASS, text, "a normalization is found by it")
    cast = text.replace(
        "y = ReduceMean <axes = [1]> (p)",
        "c = Cast <to = 11> (p) m = ReduceMean <axes = [1]> (c) y = Cast <to = 1> (m)",
    )
    check_keeps(PASS, cast, "a normalization is found by it")


test_keeps = keeps(
    PASS,
    [
        ("not 2, -1 or ½", "main (float[N] x) => (float[N] y) <float e = {3}> { y = Pow (x, e) }"),
        ("not 2, -1 or ½", "main (float[N] x) => (float[N] y) <float e = {2.0000002}> { y = Pow (x, e) }"),
        ("raise the rank", "main (float[N] x) => (float[1,N] y) <float[1,1] e = {2}> { y = Pow (x, e) }"),
        ("not one number", "main (float[2] x) => (float[2] y) <float[2] e = {2, 2}> { y = Pow (x, e) }"),
        ("not a constant", "main (float[N] x, float e) => (float[N] y) { y = Pow (x, e) }"),
        ("the types differ", "main (int32[N] x) => (int32[N] y) <float e = {2}> { y = Pow (x, e) }"),
        ("saturate", "main (int32[N] x) => (int32[N] y) <int32 e = {2}> { y = Pow (x, e) }"),
        ("saturate", "main (int32[N,1] x) => (int32[N,1] y) <int32[1] e = {2}> { y = Pow (x, e) }"),
        ("saturate", "main (int64 x) => (int64 y) <int64 e = {2}> { y = Pow (x, e) }"),
        ("only floats", "main (int32[N] x) => (int32[N] y) <int32 e = {-1}> { y = Pow (x, e) }"),
    ],
)

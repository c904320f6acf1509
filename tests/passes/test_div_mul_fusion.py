"""A product with the reciprocal becomes a quotient, of floats only."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "div_mul_fusion"


@pytest.mark.parametrize("one", ["float one = {1.0}", "float[1] one = {1.0}", "float[1,1] one = {1.0}"])
@pytest.mark.parametrize("product", ["Mul (t, b)", "Mul (b, t)"])
def test_one_over(one: str, product: str) -> None:
    head = "main (float[N,4] a, float[M,N,1] b) => (float[M,N,4] y)"
    check_rewrites(PASS, f"{head} <{one}> {{ t = Div (one, a) y = {product} }}", after=f"{head} {{ y = Div (b, a) }}")


def test_reciprocal() -> None:
    check_rewrites(
        PASS,
        "main (float a, double[3] b, double c) => (double[3] y) { t = Reciprocal (c) y = Mul (b, t) }",
        after="y = Div (b, c)",
    )


HEAD = "(float[4] a, float[4] b) => (float[A] y)"
KEPT = [
    ("only floats", "(int32[4] a, int32[4] b) => (int32[4] y) <int32 k = {1}> { t = Div (k, a) y = Mul (t, b) }"),
    ("it does not divide 1", f"{HEAD} <float k = {{2}}> {{ t = Div (k, a) y = Mul (t, b) }}"),
    ("it is not one number", f"{HEAD} <float[4] k = {{1, 1, 1, 1}}> {{ t = Div (k, a) y = Mul (t, b) }}"),
    ("it is not a constant", "(float[4] a, float[4] b, float k = {1}) => (float[4] y) { t = Div (k, a) y = Mul (t, b) }"),  # noqa: E501
    ("enlarge the rank", "(float[4] a, float[4] b) => (float[1,4] y) <float[1,1] k = {1}> { t = Div (k, a) y = Mul (t, b) }"),  # noqa: E501
    ("multiplied by itself", f"{HEAD} <float k = {{1}}> {{ t = Div (k, a) y = Mul (t, t) }}"),
    ("used elsewhere", "(float[4] a, float[4] b) => (float[4] y, float[4] t) { t = Reciprocal (a) y = Mul (t, b) }"),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)

"""Max(x, 0) and Where(x < 0, 0, x) become Relu(x)."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "relu_fusion"
HEAD = "main (float[N,8] x) => (float[N,8] y)"
ZERO = "<float zero = {0.0}>"
EDGES = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 7.0]], np.float32)


@pytest.mark.parametrize("largest", ["Max (s, zero)", "Max (zero, s)"])
def test_the_larger_of_a_sum_and_zero(largest: str) -> None:
    text = f"{HEAD} {ZERO} {{ s = Add (x, x) y = {largest} }}"
    check_rewrites(PASS, text, "s = Add (x, x) y = Relu (s)")


@pytest.mark.parametrize("condition", ["Less (x, zero)", "Greater (zero, x)"])
def test_a_choice(condition: str) -> None:
    text = f"{HEAD} {ZERO} {{ c = {condition} y = Where (c, zero, x) }}"
    check_rewrites(PASS, text, "y = Relu (x)", inputs={"x": EDGES})


@pytest.mark.parametrize("condition", ["LessOrEqual (s, zero)", "GreaterOrEqual (zero, s)"])
def test_a_choice_that_takes_zero_itself(condition: str) -> None:
    text = f"{HEAD} {ZERO} {{ s = Add (x, x) c = {condition} y = Where (c, zero, s) }}"
    check_rewrites(PASS, text, "s = Add (x, x) y = Relu (s)")


def test_half_precision() -> None:
    text = "main (float16[N,8] x) => (float16[N,8] y) <float16 zero = {0}> { s = Add (x, x) y = Max (s, zero) }"
    check_rewrites(PASS, text, "s = Add (x, x) y = Relu (s)")


KEPT = {
    "a zero with a sign": ("a Relu would let -0.0 through", f"{HEAD} {ZERO} {{ y = Max (x, zero) }}"),
    "another bound": ("no operand is 0", f"{HEAD} <float k = {{1.0}}> {{ y = Max (x, k) }}"),
    "three operands": ("Max has not two operands", f"{HEAD} {ZERO} {{ y = Max (x, x, zero) }}"),
    "a zero that can be overridden": (
        "no operand is 0",
        f"main (float[8] x, float zero) => (float[8] y) {ZERO} {{ y = Max (x, zero) }}",
    ),
    "a zero that raises the rank": (
        "raise the rank",
        "main (float[8] x) => (float[1,8] y) <float[1,1] zero = {0.0}> { s = Add (x, x) y = Max (s, zero) }",
    ),
    "a NaN would stay one": (
        "the condition is not that x is negative",
        f"{HEAD} {ZERO} {{ c = Greater (x, zero) y = Where (c, x, zero) }}",
    ),
    "another condition": (
        "the condition is not that x is negative",
        f"{HEAD} {ZERO} {{ n = Neg (x) c = Less (n, zero) y = Where (c, zero, x) }}",
    ),
    "another value": (
        "what stands for negative numbers is not 0",
        f"{HEAD} <float zero = {{0.0}}, float k = {{1.0}}> {{ c = Less (x, zero) y = Where (c, k, x) }}",
    ),
    "the condition is needed": (
        "Less's result is used elsewhere",
        f"main (float[8] x) => (float[8] y, bool[8] c) {ZERO} {{ c = Less (x, zero) y = Where (c, zero, x) }}",
    ),
    "integers": ("it is no float", "main (int64[8] x) => (int64[8] y) <int64 zero = {0}> { y = Max (x, zero) }"),
}


test_keeps = keeps(PASS, KEPT)

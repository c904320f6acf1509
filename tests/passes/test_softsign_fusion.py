"""x / (1 + |x|) becomes Softsign(x)."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "softsign_fusion"
HEAD = "main (float[N,8] x) => (float[N,8] y)"
ONE = "<float one = {1.0}>"
EDGES = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e30, -1.0]], np.float32)


@pytest.mark.parametrize("total", ["Add (a, one)", "Add (one, a)"])
@pytest.mark.parametrize(
    "quotient", ["y = Div (x, t)", "r = Reciprocal (t) y = Mul (x, r)", "r = Reciprocal (t) y = Mul (r, x)"]
)
def test_fuses(total: str, quotient: str) -> None:
    text = f"{HEAD} {ONE} {{ a = Abs (x) t = {total} {quotient} }}"
    check_rewrites(PASS, text, "y = Softsign (x)")
    if "Reciprocal" not in quotient:
        check_rewrites(PASS, text, "y = Softsign (x)", inputs={"x": EDGES})


KEPT = {
    "another sum": (
        "no operand is 1",
        f"{HEAD} <float one = {{2.0}}> {{ a = Abs (x) t = Add (a, one) y = Div (x, t) }}",
    ),
    "no magnitude": (None, f"{HEAD} {ONE} {{ a = Neg (x) t = Add (a, one) y = Div (x, t) }}"),
    "of another value": (
        "it is not x / (1 + |x|)",
        f"{HEAD} {ONE} {{ n = Neg (x) a = Abs (n) t = Add (a, one) y = Div (x, t) }}",
    ),
    "the other way": ("it is not x / (1 + |x|)", f"{HEAD} {ONE} {{ a = Abs (x) t = Add (a, one) y = Div (t, x) }}"),
    "integers": (
        "it is no float",
        "main (int32[8] x) => (int32[8] y) <int32 one = {1}> { a = Abs (x) t = Add (a, one) y = Div (x, t) }",
    ),
    "the sum is needed": (
        "the value is used elsewhere",
        f"main (float[8] x) => (float[8] y, float[8] t) {ONE} {{ a = Abs (x) t = Add (a, one) y = Div (x, t) }}",
    ),
}


test_keeps = keeps(PASS, KEPT)

"""A scaled Elu becomes Selu."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "selu_fusion"
HEAD = "main (float[N,8] x) => (float[N,8] y)"
EDGES = np.array([[np.nan, np.inf, -np.inf, 0.0, 1e-40, 2.0, -1.0, -100.0]], np.float32)


@pytest.mark.parametrize(("scale", "gamma"), [("Mul (e, k)", "1.25"), ("Mul (k, e)", "1.25"), ("Div (e, k)", "0.8")])
def test_fuses(scale: str, gamma: str) -> None:
    text = f"{HEAD} <float k = {{1.25}}> {{ e = Elu <alpha = 1.5> (x) y = {scale} }}"
    check_rewrites(PASS, text, f"y = Selu <alpha = 1.5, gamma = {gamma}> (x)", inputs={"x": EDGES})


def test_the_default() -> None:
    text = f"{HEAD} <float k = {{2.0}}> {{ e = Elu (x) y = Mul (e, k) }}"
    check_rewrites(PASS, text, "y = Selu <alpha = 1.0, gamma = 2.0> (x)")


KEPT = {
    "no Elu": (None, f"{HEAD} <float k = {{2.0}}> {{ e = Celu (x) y = Mul (e, k) }}"),
    "a negative factor": (
        "the factor is out of range",
        f"{HEAD} <float k = {{-2.0}}> {{ e = Elu (x) y = Mul (e, k) }}",
    ),
    "the Elu divides": ("not multiplied by one number", f"{HEAD} <float k = {{2.0}}> {{ e = Elu (x) y = Div (k, e) }}"),
    "a factor for each": (
        "not multiplied by one number",
        f"{HEAD} <float[8] k = {{1,2,3,4,5,6,7,8}}> {{ e = Elu (x) y = Mul (e, k) }}",
    ),
    "the Elu is needed": (
        "not multiplied by one number",
        "main (float[8] x) => (float[8] y, float[8] e) <float k = {2.0}> { e = Elu (x) y = Mul (e, k) }",
    ),
}


test_keeps = keeps(PASS, KEPT)

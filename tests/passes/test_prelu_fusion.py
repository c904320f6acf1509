"""A Relu with a slope for each channel, in any spelling, becomes PRelu."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "prelu_fusion"
HEAD = "main (float[N,8] x) => (float[N,8] y)"
EACH = "float[8] each = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0}"
EDGES = np.array([[np.nan, np.inf, -np.inf, 0.0, 2.0, 1e-40, -1e-40, -7.0]], np.float32)


@pytest.mark.parametrize(
    "nodes",
    [
        "m = Mul (x, each) y = Max (x, m)",
        "p = Relu (x) n = Neg (x) q = Relu (n) m = Mul (each, q) y = Sub (p, m)",
    ],
)
def test_fuses(nodes: str) -> None:
    after = f"{HEAD} <{EACH}> {{ y = PRelu (x, each) }}"
    check_rewrites(PASS, f"{HEAD} <{EACH}> {{ {nodes} }}", after, inputs={"x": EDGES})


def test_a_choice() -> None:
    text = f"{HEAD} <{EACH}, float zero = {{0.0}}> {{ c = Less (x, zero) m = Mul (x, each) y = Where (c, m, x) }}"
    check_rewrites(PASS, text, ops={"PRelu": 1, "Where": 0, "Mul": 0, "Less": 0})


KEPT = {
    "one number": ("the slope is one number", f"{HEAD} <float k = {{0.5}}> {{ m = Mul (x, k) y = Max (x, m) }}"),
    "a slope above 1": (
        "the slope is on the wrong side of 1",
        f"{HEAD} <{EACH.replace('0.7', '1.7')}> {{ m = Mul (x, each) y = Max (x, m) }}",
    ),
    "a slope of 0": (
        "a slope is not positive",
        f"{HEAD} <{EACH.replace('0.7', '0.0')}, float zero = {{0.0}}> "
        "{ c = Less (x, zero) m = Mul (x, each) y = Where (c, m, x) }",
    ),
    "an unknown rank": (
        "the shape is unknown",
        f"main (float[] x) => (float[] y) <{EACH}> {{ m = Mul (x, each) y = Max (x, m) }}",
    ),
    "slopes that enlarge x": (
        "the slope would enlarge the result",
        f"main (float[N,1] x) => (float[N,8] y) <{EACH}> {{ m = Mul (x, each) y = Max (x, m) }}",
    ),
}


test_keeps = keeps(PASS, KEPT)

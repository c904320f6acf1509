"""A Relu with a slope, in any spelling, becomes LeakyRelu."""

import re

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "leaky_relu_fusion"
HEAD = "main (float[N,8] x) => (float[N,8] y)"
NUMBERS = {
    "zero": "float zero = {0.0}",
    "small": "float small = {0.25}",
    "minus": "float minus = {-0.25}",
    "two": "float two = {2.0}",
    "each": "float[8] each = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0}",
    "rows": "float[2,8] rows = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}",
    "infinite": "float infinite = {inf}",
}
EDGES = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, -7.0]], np.float32)


def model(nodes: str, head: str = HEAD, **numbers: str) -> str:
    """A graph of some nodes, with the constants that they use."""
    used = [numbers.get(name, text) for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} <{', '.join(used)}> {{ {nodes} }}"


SPELLINGS = [
    "m = Mul (x, small) y = Max (x, m)",
    "m = Mul (small, x) y = Max (m, x)",
    "c = Greater (x, zero) m = Mul (x, small) y = Where (c, x, m)",
    "c = GreaterOrEqual (x, zero) m = Mul (x, small) y = Where (c, x, m)",
    "c = Less (x, zero) m = Mul (x, small) y = Where (c, m, x)",
    "c = LessOrEqual (x, zero) m = Mul (x, small) y = Where (c, m, x)",
    "c = Less (zero, x) m = Mul (x, small) y = Where (c, x, m)",
    "c = GreaterOrEqual (zero, x) m = Mul (x, small) y = Where (c, m, x)",
    "p = Relu (x) n = Neg (x) q = Relu (n) m = Mul (q, small) y = Sub (p, m)",
    "p = Relu (x) n = Neg (x) q = Relu (n) m = Mul (minus, q) y = Add (p, m)",
    "p = Relu (x) n = Neg (x) q = Relu (n) m = Mul (q, minus) y = Add (m, p)",
]


@pytest.mark.parametrize("nodes", SPELLINGS)
def test_one_slope(nodes: str) -> None:
    edges = np.where(EDGES == 0, 0, EDGES)  # ONNX Runtime's Where makes 0.0 of a -0.0
    check_rewrites(PASS, model(nodes), "y = LeakyRelu <alpha = 0.25> (x)", inputs={"x": edges})

"""Mish is arithmetic with one exponential, on the CPU."""

from __future__ import annotations

import numpy as np

from ortopt.options import Options
from ortopt.testing import check_rewrites

PASS = "mish_decomposition"
DEFAULT = Options()
OPS = {"Min": 1, "Exp": 1, "Add": 2, "Mul": 2, "Div": 1}
SPELLED = "s = Softplus (x) t = Tanh (s) y = Mul (x, t)"
EDGES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-30, -1e-40, -200.0, -60.0, -50.0, 19.5, 20.0, 21.0, 90.0, 3e38)


def model(nodes: str, size: str = "N,16,8,8") -> str:
    one = "<float one = {1}>" if "one" in nodes else ""
    return f"main (float[{size}] x) => (float[{size}] y) {one} {{ {nodes} }}"


def test_numbers_at_the_edges() -> None:
    x = np.resize(np.array(EDGES, np.float32), (1, 16, 8, 8))
    check_rewrites(PASS, model(SPELLED), ops=OPS, inputs={"x": x}, options=DEFAULT)


def test_no_digits_are_lost() -> None:
    x = np.linspace(-85, 60, 1024).reshape(1, 16, 8, 8)
    power = np.exp(np.minimum(x, 20)).astype(np.float32)
    above = power * (power + np.float32(2))
    exact = x * np.tanh(np.logaddexp(0, x))
    assert np.allclose(x * (above / (above + np.float32(2))), exact, rtol=1e-6, atol=0)

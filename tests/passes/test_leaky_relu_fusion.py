"""A Relu with a slope, in any spelling, becomes LeakyRelu."""

import re

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

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


def test_the_smaller_of_x_and_a_multiple() -> None:
    check_rewrites(PASS, model("m = Mul (x, two) y = Min (x, m)"), "y = LeakyRelu <alpha = 2.0> (x)")


def test_a_minimum_with_zero() -> None:
    nodes = "s = Add (x, two) p = Relu (s) q = Min (s, zero) m = Mul (q, small) y = Add (p, m)"
    check_rewrites(PASS, model(nodes), ops={"LeakyRelu": 1, "Add": 1, "Relu": 0, "Min": 0, "Mul": 0})


@pytest.mark.parametrize("slope", ["float", "float[1]", "float[1,1,1]", "float[8]"])
def test_a_prelu(slope: str) -> None:
    numbers = ", ".join(["0.25"] * (8 if "8" in slope else 1))
    text = f"main (float[N,2,3,8] x) => (float[N,2,3,8] y) <{slope} s = {{{numbers}}}> {{ y = PRelu (x, s) }}"
    check_rewrites(PASS, text, "y = LeakyRelu <alpha = 0.25> (x)")


def test_keeps_a_prelu_of_other_slopes() -> None:
    check_keeps(PASS, model("y = PRelu (x, each)"), "its elements differ")
    check_keeps(PASS, model("y = PRelu (x, minus)"), "a slope is not positive")


NOT_SLOPED = "it is not x where x is positive"
KEPT = {
    "a slope above 1": ("the slope is on the wrong side of 1", model("m = Mul (x, two) y = Max (x, m)")),
    "a slope below 1": ("the slope is on the wrong side of 1", model("m = Mul (x, small) y = Min (x, m)")),
    "a slope of 0": ("the slope is on the wrong side of 1", model("m = Mul (x, zero) y = Max (x, m)")),
    "a negative slope": ("the slope is on the wrong side of 1", model("m = Mul (x, minus) y = Max (x, m)")),
    "another value": (NOT_SLOPED, model("m = Mul (x, small) n = Neg (x) y = Max (n, m)")),
    "an infinite slope": (
        "a slope is large",
        model("c = Greater (x, zero) m = Mul (x, infinite) y = Where (c, x, m)"),
    ),
    "a slope that enlarges x": (
        "the slope would enlarge the result",
        model("m = Mul (x, rows) y = Max (x, m)", "main (float[1,8] x) => (float[2,8] y)"),
    ),
    "slopes for each column": ("the slope is not one number", model("m = Mul (x, each) y = Max (x, m)")),
    "a computed slope": (
        "no operand is a constant",
        model("m = Mul (x, s) y = Max (x, m)", HEAD.replace(" x)", " x, float s)")).replace("<>", ""),
    ),
    "another threshold": (NOT_SLOPED, model("c = Greater (x, two) m = Mul (x, small) y = Where (c, x, m)")),
    "the other way": (NOT_SLOPED, model("c = Less (x, zero) m = Mul (x, small) y = Where (c, x, m)")),
    "the condition of another value": (
        NOT_SLOPED,
        model("n = Neg (x) c = Greater (n, zero) m = Mul (x, small) y = Where (c, x, m)"),
    ),
    "the product of another value": (
        NOT_SLOPED,
        model("n = Neg (x) c = Greater (x, zero) m = Mul (n, small) y = Where (c, x, m)"),
    ),
    "halves of two values": (
        NOT_SLOPED,
        model("p = Relu (x) t = Abs (x) n = Neg (t) q = Relu (n) m = Mul (q, small) y = Sub (p, m)"),
    ),
    "zeros with signs": (
        "a zero would have the other sign",
        model("p = Relu (x) q = Min (x, zero) m = Mul (q, small) y = Add (p, m)"),
    ),
    "a negative slope, by Where": (
        "a slope is not positive",
        model("c = Greater (x, zero) m = Mul (x, minus) y = Where (c, x, m)"),
    ),
    "the product is needed": (
        "Mul's result is used elsewhere",
        model("m = Mul (x, small) y = Max (x, m)", "main (float[8] x) => (float[8] y, float[8] m)"),
    ),
    "integers": (
        "it is no float",
        "main (int32[8] x) => (int32[8] y) <int32 k = {1}> { m = Mul (x, k) y = Max (x, m) }",
    ),
    "double precision": ("the kernels are for single precision", model(SPELLINGS[0]).replace("float", "double")),
}


test_keeps = keeps(PASS, KEPT)

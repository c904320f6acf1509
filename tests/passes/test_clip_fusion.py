"""A minimum of a maximum becomes a Clip."""

import re

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "clip_fusion"
HEAD = "main (float[N,8] x) => (float[N,8] y)"
NUMBERS = {
    "low": "float low = {-1.0}",
    "zero": "float zero = {0.0}",
    "six": "float six = {6.0}",
    "each": "float[8] each = {1, 2, 3, 4, 5, 6, 7, 8}",
    "nan": "float nan = {nan}",
}
EDGES = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 6.0, -1.0, 7.0]], np.float32)


def model(nodes: str, head: str = HEAD, **numbers: str) -> str:
    """A graph of some nodes, with the constants that they use."""
    used = [numbers.get(name, text) for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} <{', '.join(used)}> {{ {nodes} }}"


SPELLINGS = {
    "m = Max (x, low) y = Min (m, six)": "-1.0",
    "m = Max (low, x) y = Min (six, m)": "-1.0",
    "m = Min (x, six) y = Max (low, m)": "-1.0",
    "m = Relu (x) y = Min (m, six)": "0.0",
}


@pytest.mark.parametrize("nodes", SPELLINGS)
def test_fuses(nodes: str) -> None:
    after = f"{HEAD} <float a = {{{SPELLINGS[nodes]}}}, float b = {{6.0}}> {{ y = Clip (x, a, b) }}"
    check_rewrites(PASS, model(nodes), after, inputs={"x": EDGES})


@pytest.mark.parametrize("nodes", ["m = Max (s, zero) y = Min (m, six)", "m = Min (s, six) y = Max (m, zero)"])
def test_zero_below_a_sum(nodes: str) -> None:
    text = model(f"s = Add (x, six) {nodes}")
    check_rewrites(PASS, text, ops={"Clip": 1, "Max": 0, "Min": 0}, inputs={"x": EDGES})


def test_double_precision() -> None:
    text = model("m = Relu (x) y = Min (m, six)").replace("float", "double")
    check_rewrites(PASS, text, ops={"Clip": 1, "Min": 0})
    check_keeps(PASS, text, "before opset 12", opset=10)


def test_before_bounds_were_inputs() -> None:
    check_rewrites(PASS, model("m = Relu (x) y = Min (m, six)"), "y = Clip <min = 0.0, max = 6.0> (x)", opset=10)


TWO = "main (float[8] x) => (float[8] y, float[8] m)"
KEPT = {
    "no bound inside": ("no operand comes from Max or Relu", model("m = Neg (x) y = Min (m, six)")),
    "two values": (
        "no operand is a constant",
        model("m = Max (x, z) y = Min (m, six)", HEAD.replace(" x)", " x, float[8] z)")),
    ),
    "a computed bound": (
        "not a constant",
        model("m = Max (x, low) y = Min (m, s)", HEAD.replace(" x)", " x, float s)")),
    ),
    "a bound for each column": ("not one number", model("m = Max (x, low) y = Min (m, each)")),
    "a zero with a sign": ("a Clip would let -0.0 through", model("m = Max (x, zero) y = Min (m, six)")),
    "three operands": ("has not two operands", model("m = Max (x, low) y = Min (m, six, six)")),
    "bounds out of order": ("the bounds are out of order", model("m = Max (x, six) y = Min (m, low)")),
    "a bound that raises the rank": (
        "raise the rank",
        model(
            "m = Max (x, low) y = Min (m, six)",
            "main (float[8] x) => (float[1,8] y)",
            six="float[1,1] six = {6.0}",
        ),
    ),
    "the value between is needed": ("Max's result is used elsewhere", model("m = Max (x, low) y = Min (m, six)", TWO)),
    "integers": (
        "it is no float",
        model("m = Max (x, low) y = Min (m, six)").replace("float", "int32").replace(".0", ""),
    ),
}


test_keeps = keeps(PASS, KEPT)

"""Quantized biases of zeros go."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "quantized_zero_elimination"
HEAD = "main (uint8[N,2] q) => (float[N,2] y)"
CONSTANTS = "float s = {0.1}, uint8 z = {3}, float t = {0.5}"
UNSIGNED = "uint8[2] b = {7, 7}, uint8 w = {7}"
X = "x = DequantizeLinear (q, s, z)"
BIAS = "c = DequantizeLinear (b, t, w)"


def model(body: str, *, bias: str = UNSIGNED, head: str = HEAD, constants: str = CONSTANTS) -> str:
    return f"{head} <{constants}, {bias}> {{ {body} }}"


@pytest.mark.parametrize("add", ["Add (x, c)", "Add (c, x)"])
def test_zeros_of_integers(add: str) -> None:
    body = f"{X} {BIAS} a = {add} y = Neg (a)"
    check_rewrites(PASS, model(body), f"{X} y = Neg (x)")


@pytest.mark.parametrize("bias", ["int8[1] b = {0}, int8 w = {0}", "int32[2] b = {0, 0}, int32 w = {0}"])
def test_kinds_of_integers(bias: str) -> None:
    check_rewrites(PASS, model(f"{X} {BIAS} a = Add (x, c) y = Neg (a)", bias=bias), f"{X} y = Neg (x)")


def test_no_zero_point() -> None:
    body = f"{X} c = DequantizeLinear (b, t) a = Add (x, c) y = Neg (a)"
    check_rewrites(PASS, model(body, bias="int8[2] b = {0, 0}"), ops={"Add": 0})


def test_scales_by_channel() -> None:
    body = f"{X} c = DequantizeLinear <axis = 0> (b, u, w) a = Add (x, c) y = Neg (a)"
    bias = "int8[2] b = {1, 1}, int8[2] w = {1, 1}, float[2] u = {1, 2}"
    check_rewrites(PASS, model(body, bias=bias, constants="float s = {0.1}, uint8 z = {3}"), ops={"Add": 0})


def test_a_sum_that_is_quantized() -> None:
    """A -0.0 is quantized as 0.0 is."""
    head = "main (float[N,2] x) => (uint8[N,2] y)"
    body = f"{BIAS} a = Add (x, c) y = QuantizeLinear (a, s, z)"
    given = {"x": np.array([[-0.0, 0.0], [1, np.nan]], np.float32)[:1]}
    check_rewrites(PASS, model(body, head=head), "y = QuantizeLinear (x, s, z)", inputs=given)


KEPT = {
    "no operand is dequantized from zeros": model(
        f"{X} {BIAS} y = Add (x, c)", bias="uint8[2] b = {7, 8}, uint8 w = {7}"
    ),
    "the zeros may enlarge the result": model(
        f"{X} {BIAS} y = Add (x, c)", head="main (uint8[N,1] q) => (float[N,2] y)"
    ),
    "x may hold -0.0": model(
        f"{BIAS} y = Add (x, c)", head="main (float[N,2] x) => (float[N,2] y)", constants="float t = {0.5}"
    ),
}


test_keeps = keeps(PASS, KEPT)


@pytest.mark.parametrize("scale", ["-0.5", "0", "1e-40", "inf", "nan"])
def test_scales_that_make_other_zeros(scale: str) -> None:
    text = model(f"{X} {BIAS} y = Add (x, c)", constants=CONSTANTS.replace("t = {0.5}", f"t = {{{scale}}}"))
    check_keeps(PASS, text, "no operand is dequantized from zeros")

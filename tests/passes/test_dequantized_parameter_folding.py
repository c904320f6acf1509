"""Parameters of normalizations are dequantized once."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "dequantized_parameter_folding"
HEAD = "main (float[N,3] x) => (float[N,3] y)"
WEIGHT = "uint8[3] w = {0, 7, 255}, float s = {0.3}, uint8 z = {128}"


def model(body: str, constants: str, head: str = HEAD) -> str:
    return f"{head} <{constants}> {{ {body} }}"


def test_folds() -> None:
    body = "c = DequantizeLinear (b, t) v = DequantizeLinear (w, s, z) y = LayerNormalization (x, v, c)"
    constants = f"{WEIGHT}, int32[3] b = {{-2147483648, 16777217, 5}}, float t = {{0.0000001}}"
    check_rewrites(PASS, model(body, constants), ops={"DequantizeLinear": 0, "LayerNormalization": 1})


def test_the_numbers() -> None:
    constants = "uint8[3] w = {0, 7, 255}, float s = {0.5}, uint8 z = {128}"
    after = "main (float[N,3] x) => (float[N,3] y) <float[3] v = {-64, -60.5, 63.5}> { y = LayerNormalization (x, v) }"
    check_rewrites(PASS, model("v = DequantizeLinear (w, s, z) y = LayerNormalization (x, v)", constants), after)


@pytest.mark.parametrize("zero", ["", ", int8[3] z = {1, 2, 3}"])
def test_scales_by_channel(zero: str) -> None:
    body = f"v = DequantizeLinear <axis = 0> (w, s{', z' if zero else ''}) y = LayerNormalization (x, v)"
    constants = f"int8[3] w = {{-128, 1, 127}}, float[3] s = {{0.1, 2, 0.3}}{zero}"
    check_rewrites(PASS, model(body, constants), ops={"DequantizeLinear": 0})


def test_images() -> None:
    head = "main (float[N,3,4,4] x) => (float[N,3,4,4] y)"
    body = "v = DequantizeLinear (w, s, z) y = InstanceNormalization (x, v, v)"
    check_rewrites(PASS, model(body, WEIGHT, head), ops={"DequantizeLinear": 0})


KEPT = {
    "others than normalizations read it": model(
        "v = DequantizeLinear (w, s, z) n = LayerNormalization (x, v) y = Add (n, v)", WEIGHT
    ),
    "it is not constant": model(
        "v = DequantizeLinear (w, s) y = LayerNormalization (x, v)",
        "float s = {0.3}",
        "main (float[N,3] x, uint8[3] w) => (float[N,3] y)",
    ),
    "it is a result": model(
        "v = DequantizeLinear (w, s, z) y = LayerNormalization (x, v)",
        WEIGHT,
        "main (float[N,3] x) => (float[N,3] y, float[3] v)",
    ),
    "it has other types": model(
        "v = DequantizeLinear (w, s) y = LayerNormalization (x, v)",
        "uint8[3] w = {0, 7, 255}, float16 s = {14336}",
        "main (float16[N,3] x) => (float16[N,3] y)",
    ),
    "it has several scales, and several axes": model(
        "v = DequantizeLinear <axis = 0> (w, s) y = LayerNormalization <axis = 0> (x, v)",
        "uint8[2,3] w = {0, 7, 255, 1, 2, 3}, float[2] s = {0.5, 0.25}",
        "main (float[2,3] x) => (float[2,3] y)",
    ),
}


test_keeps = keeps(PASS, KEPT, opset=19)


def test_the_first_operand() -> None:
    """What is normalized is no parameter."""
    head = "main (float[3] v) => (float[3] y)"
    text = model("x = DequantizeLinear (w, s, z) y = LayerNormalization (x, v)", WEIGHT, head)
    check_keeps(PASS, text, "others than normalizations read it")


def test_other_runtimes_keep_pairs() -> None:
    check_keeps(PASS, model("v = DequantizeLinear (w, s, z) y = LayerNormalization (x, v)", WEIGHT), target="onnx")

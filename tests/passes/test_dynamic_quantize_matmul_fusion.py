"""Floats that are quantized for one product of integers are quantized in its kernel."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "dynamic_quantize_matmul_fusion"
WEIGHT = "int8[4,3] b = {1, -2, 3, 100, -128, 127, 0, 5, -6, 70, 80, -90}"
COLUMNS = "float[3] t = {0.01, 0.02, 0.015}, int8[3] w = {0, 1, -3}"
OTHERS = {"d": "float[3] d = {1.5, -2, 0.1}", "e": "float[1,3] e = {1, 2, 3}", "k": "uint8 k = {7}"}
ONE = "float t = {0.01}, int8 w = {2}"


def model(end: str = "y = Mul (c, f)", constants: str = ONE, inputs: str = "", out: str = "", zero: str = "z") -> str:
    used = [text for name, text in OTHERS.items() if f"({name}," in end or name == zero]
    more = "".join(f", {text}" for text in used)
    weight = "" if inputs else f"{WEIGHT}, "
    return f"""main (float[N,4] x{inputs}) => (float[N,3] y{out}) <{weight}{constants}{more}> {{
        q, s, z = DynamicQuantizeLinear (x) i = MatMulInteger (q, b, {zero}, w) c = Cast <to = 1> (i)
        f = Mul (s, t) {end} }}"""


@pytest.mark.parametrize("constants", [COLUMNS, ONE])
def test_without_a_bias(constants: str) -> None:
    check_rewrites(PASS, model(constants=constants), after="y = com.microsoft.DynamicQuantizeMatMul (x, b, t, w)")


def test_with_a_bias() -> None:
    text = model("m = Mul (c, f) y = Add (d, m)")
    check_rewrites(PASS, text, after="y = com.microsoft.DynamicQuantizeMatMul (x, b, t, w, d)")


def test_without_a_zero_point() -> None:
    text = model(constants="float t = {0.01}").replace(", z, w)", ", z)")
    check_rewrites(PASS, text, after="y = com.microsoft.DynamicQuantizeMatMul (x, b, t)")


def test_a_weight_and_a_zero_point_that_change() -> None:
    text = model(inputs=", int8[4,3] b, int8[1] w", constants="float t = {0.01}")
    check_rewrites(PASS, text, after="y = com.microsoft.DynamicQuantizeMatMul (x, b, t, w)")


test_keeps = keeps(
    PASS,
    [
        (
            "others read the quantized floats",
            model("y = Mul (c, f) v = MatMulInteger (q, b, z, w)", out=", int32[N,3] v"),
        ),
        ("others read the quantized floats", model(out=", uint8[N,4] q")),
        ("others read the product of the scales", model("y = Mul (c, f) v = Neg (f)", out=", float v")),
        ("the scale and the zero point are others", model(zero="k")),
        (None, model(), {"target": "onnx"}),
    ],
)

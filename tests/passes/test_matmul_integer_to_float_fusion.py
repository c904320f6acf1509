"""A product of integers that becomes floats at once is one kernel."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.quantized_units import drawn, parse, run
from tests.passes.tables import keeps

PASS = "matmul_integer_to_float_fusion"
COLUMNS = "float[3] t = {0.01, 0.02, 0.015}, int8[3] w = {0, 1, -3}"
OTHERS = {"d": "float[3] d = {1.5, -2, 0.1}", "e": "float[1,3] e = {1, 2, 3}", "k": "uint8 k = {7}"}
ONE = "float t = {0.01}, int8 w = {2}"


def model(
    factor: str = "f = Mul (s, t)",
    end: str = "y = Mul (c, f)",
    product: str = "i = MatMulInteger (a, b, z, w)",
    constants: str = ONE,
    b: str = "4,3",
    out: str = "",
) -> str:
    used = [text for name, text in OTHERS.items() if f"{name})" in end or f"({name}," in end]
    more = "".join(f", {text}" for text in used)
    return f"""main (uint8[N,4] a, float s, uint8 z, int8[{b}] b) => (float[N,3] y{out}) <{constants}{more}> {{
        {product} c = Cast <to = 1> (i) {factor} {end} }}"""


@pytest.mark.parametrize("constants", [COLUMNS, ONE])
@pytest.mark.parametrize("factor", ["f = Mul (s, t)", "f = Mul (t, s)"])
@pytest.mark.parametrize("end", ["y = Mul (c, f)", "y = Mul (f, c)"])
def test_without_a_bias(end: str, factor: str, constants: str) -> None:
    text = model(factor, end, constants=constants)
    check_rewrites(PASS, text, after="y = com.microsoft.MatMulIntegerToFloat (a, b, s, t, z, w)")


@pytest.mark.parametrize("end", ["Add (m, d)", "Add (d, m)", "Sum (m, d)"])
def test_with_a_bias(end: str) -> None:
    text = model(end=f"m = Mul (c, f) y = {end}")
    check_rewrites(PASS, text, after="y = com.microsoft.MatMulIntegerToFloat (a, b, s, t, z, w, d)")


def test_without_zero_points() -> None:
    text = model(product="i = MatMulInteger (a, b)", constants="float t = {0.01}")
    check_rewrites(PASS, text, after="y = com.microsoft.MatMulIntegerToFloat (a, b, s, t)")


def test_bits_stay() -> None:
    original = parse(model(constants=COLUMNS, end="m = Mul (c, f) y = Add (m, d)"))
    feeds = {value.name or "": drawn(value, 3) for value in original.graph.inputs}
    result = check_rewrites(PASS, model(constants=COLUMNS, end="m = Mul (c, f) y = Add (m, d)"))
    assert abs(run(original, feeds)[0] - run(result, feeds)[0]).max() <= 1e-5


def test_what_is_added_and_no_bias_stays() -> None:
    text = model(end="m = Mul (c, f) y = Add (m, e)")
    check_rewrites(PASS, text, after="m = com.microsoft.MatMulIntegerToFloat (a, b, s, t, z, w) y = Add (m, e)")


def test_other_products_of_the_scales_stay() -> None:
    text = model(end="y = Mul (c, f) g = Neg (f)", out=", float g")
    check_rewrites(PASS, text, ops={"com.microsoft::MatMulIntegerToFloat": 1, "Mul": 1, "Neg": 1})


test_keeps = keeps(
    PASS,
    [
        ("no product of two scales", model(factor="f = Exp (s)")),
        ("used elsewhere", model(out=", float[N,3] c")),
        ("used elsewhere", model(out=", int32[N,3] i")),
        ("sum of nothing", model().replace("uint8[N,4] a", "uint8[N,0] a").replace("[4,3] b", "[0,3] b")),
        ("not those of columns", model(b="N,4,3").replace("float[N,3] y", "float[N,N,3] y").replace(ONE, COLUMNS)),
        ("a vector", model().replace("uint8[N,4] a", "uint8[4] a").replace("float[N,3] y", "float[3] y")),
        (None, model(), {"target": "onnx"}),
    ],
)


def test_keeps_doubles() -> None:
    text = (
        model(constants="double t = {0.01}, int8 w = {2}").replace("to = 1", "to = 11").replace("float s", "double s")
    )
    text = text.replace("float[N,3] y", "double[N,3] y")
    check_keeps(PASS, text, because="do not become float32")


def dequantized(product: str = "y = MatMul (f, g)", constants: str = "", a: str = "N,4", out: str = "N,3") -> str:
    return f"""main (uint8[{a}] a, int8[4,3] b) => (float[{out}] y) <float s = {{0.05}}, uint8 z = {{7}},
        float[3] t = {{0.01, 0.02, 0.015}}, int8[3] w = {{0, 0, 0}}{constants}> {{ f = DequantizeLinear (a, s, z)
        g = DequantizeLinear <axis = 1> (b, t, w) {product} }}"""


def test_what_is_dequantized() -> None:
    """Zero points that are 0 are left out: the kernel would correct its sums by them."""
    check_rewrites(PASS, dequantized(), after="y = com.microsoft.MatMulIntegerToFloat (a, b, s, t, z)")


def test_what_is_dequantized_with_a_bias() -> None:
    text = dequantized("m = MatMul (f, g) y = Add (d, m)", f", {OTHERS['d']}", "2,N,4", "2,N,3")
    check_rewrites(PASS, text, after="y = com.microsoft.MatMulIntegerToFloat (a, b, s, t, z, , d)")


def test_keeps_what_is_quantized_again() -> None:
    text = dequantized("m = MatMul (f, g) q = QuantizeLinear (m, s, z) y = DequantizeLinear (q, s, z)")
    check_keeps(PASS, text, because="quantize the result as well")


def test_keeps_floats() -> None:
    check_keeps(PASS, dequantized("e = Neg (f) y = MatMul (e, g)"), because="no DequantizeLinear comes before")

"""A product of integers that becomes floats at once is one kernel."""

from ortopt.testing import check_rewrites
from tests.passes.quantized_units import drawn, parse, run

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


def test_bits_stay() -> None:
    original = parse(model(constants=COLUMNS, end="m = Mul (c, f) y = Add (m, d)"))
    feeds = {value.name or "": drawn(value, 3) for value in original.graph.inputs}
    result = check_rewrites(PASS, model(constants=COLUMNS, end="m = Mul (c, f) y = Add (m, d)"))
    assert abs(run(original, feeds)[0] - run(result, feeds)[0]).max() <= 1e-5

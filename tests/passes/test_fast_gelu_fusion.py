"""The tanh form of GELU, in any spelling, becomes one node."""

import re

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "fast_gelu_fusion"
FUSED = "y = com.microsoft.FastGelu (x)"
NUMBERS = {
    "one": "1",
    "two": "2",
    "three": "3",
    "half": "0.5",
    "linear": "0.7978846",
    "few": "0.79788",
    "cubic": "0.044715",
    "both": "0.035677408",
}
ARGUMENTS = {
    "c · (x + k · x³)": "p = Pow (x, three) q = Mul (p, cubic) r = Add (x, q) t = Mul (r, linear)",
    "(k · x³ + x) · c": "p = Pow (x, three) q = Mul (cubic, p) r = Add (q, x) t = Mul (linear, r)",
    "x · x · x": "s = Mul (x, x) p = Mul (s, x) q = Mul (p, cubic) r = Add (x, q) t = Mul (r, linear)",
    "x² · x": "s = Pow (x, two) p = Mul (x, s) q = Mul (p, cubic) r = Add (x, q) t = Mul (r, linear)",
    "c · x · (1 + k · x · x)": """
        k = Mul (x, cubic) b = Mul (x, k) d = Add (b, one) e = Mul (x, linear) t = Mul (e, d)""",
    "x · (c + c · k · x²)": "s = Mul (x, x) q = Mul (s, both) r = Add (q, linear) t = Mul (x, r)",
    "few digits": "p = Pow (x, three) q = Mul (p, cubic) r = Add (x, q) t = Mul (r, few)",
}
PRODUCTS = {
    "(x · ½) · a": "m = Mul (x, half) y = Mul (m, a)",
    "a · (½ · x)": "m = Mul (half, x) y = Mul (a, m)",
    "(x · a) · ½": "m = Mul (x, a) y = Mul (m, half)",
    "x · (½ · a)": "m = Mul (half, a) y = Mul (x, m)",
    "(a · x) / 2": "m = Mul (a, x) y = Div (m, two)",
}


def whole(body: str, inputs: str = "float[N,3,8] x", outputs: str = "float[N,3,8] y") -> str:
    used = [f"float {name} = {{{number}}}" for name, number in NUMBERS.items() if re.search(rf"\b{name}\b", body)]
    return f"main ({inputs}) => ({outputs}) <{', '.join(used)}> {{ {body} }}"


def body(argument: str = "c · (x + k · x³)", product: str = "(x · ½) · a") -> str:
    return f"{ARGUMENTS[argument]} h = Tanh (t) a = Add (h, one) {PRODUCTS[product]}"


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_spellings(argument: str, product: str) -> None:
    check_rewrites(PASS, whole(body(argument, product)), FUSED, level=2)


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_the_standard_op_where_the_opset_has_it(target: str) -> None:
    check_rewrites(PASS, whole(body()), 'y = Gelu <approximate = "tanh"> (x)', opset=20, target=target)


def test_x_that_is_itself_half_of_something() -> None:
    text = body().replace("(x", "(z").replace(" x,", " z,").replace("Add (x, q)", "Add (z, q)")
    text = text.replace("Mul (z, half) y", "Mul (z, half) y")
    check_rewrites(
        PASS,
        whole(f"z = Mul (x, half) {text}"),
        "h = Constant <value = float {0.5}> () z = Mul (x, h) y = com.microsoft.FastGelu (z)",
        level=2,
    )
    plain = "m = Mul (z, a) y = Mul (m, half)"
    check_rewrites(
        PASS,
        whole(f"z = Mul (x, half) {text}".replace("m = Mul (z, half) y = Mul (m, a)", plain)),
        "h = Constant <value = float {0.5}> () z = Mul (x, h) y = com.microsoft.FastGelu (z)",
        level=2,
    )


POLYNOMIAL = "the argument of Tanh is not"
KEPT = {
    "another exponent": (POLYNOMIAL, whole(body().replace("Pow (x, three)", "Pow (x, two)"))),
    "another linear coefficient": (POLYNOMIAL, whole(body().replace("linear", "one"))),
    "another cubic coefficient": (POLYNOMIAL, whole(body().replace("cubic", "both"))),
    "a constant term": (
        POLYNOMIAL,
        whole(body().replace("t = Mul (r, linear)", "u = Mul (r, linear) t = Add (u, one)")),
    ),
    "a root of x": ("it is no polynomial", whole(body().replace("Pow (x, three)", "Pow (x, half)"))),
    "x is the exponent": ("it is no polynomial", whole(body().replace("Pow (x, three)", "Pow (three, x)"))),
    "x divides": ("it is no polynomial", whole(body().replace("Mul (p, cubic)", "Div (cubic, p)"))),
    "another op": ("no Add or Sub or Mul or Div or Pow", whole(body().replace("Pow (x, three)", "Exp (x)"))),
    "another x": (
        "no Add or Sub or Mul or Div or Pow",
        whole(body().replace("Mul (x, half)", "Mul (z, half)"), "float[N,3,8] x, float[N,3,8] z"),
    ),
    "2 is added": ("no operand is 1", whole(body().replace("Add (h, one)", "Add (h, two)"))),
    "the polynomial is needed": (
        "Mul's result is used elsewhere",
        whole(body(), outputs="float[N,3,8] y, float[N,3,8] t"),
    ),
    "the sum is needed": ("used elsewhere", whole(body(), outputs="float[N,3,8] y, float[N,3,8] a")),
    "a long polynomial": (
        "too long",
        whole(
            " ".join(f"x{i + 1} = Add (x{i}, x{i})" for i in range(1, 14)).replace("(x1, x1)", "(x, x)")
            + " h = Tanh (x14) a = Add (h, one) m = Mul (x, half) y = Mul (m, a)"
        ),
    ),
}


test_keeps = keeps(PASS, KEPT, level=2)


def test_keeps_where_only_onnxruntime_has_the_op() -> None:
    check_keeps(PASS, whole(body()), "no op of the ONNX specification", level=1)
    check_keeps(PASS, whole(body()), "no op of the ONNX specification", level=2, target="onnx")


def test_keeps_a_double_with_the_coefficients_of_a_float() -> None:
    options = Options(providers=("CUDAExecutionProvider",))
    check_keeps(PASS, whole(body()).replace("float", "double"), POLYNOMIAL, level=2, options=options)


def test_halves_are_floats_where_there_is_no_kernel() -> None:
    """Their coefficients have few digits. Halves are written by their bits."""
    text = """main (float16[N,8] x) => (float16[N,8] y) <float16 three = {16896}, float16 cubic = {10681},
        float16 linear = {14946}, float16 one = {15360}, float16 half = {14336}> {
        p = Pow (x, three) q = Mul (p, cubic) r = Add (x, q) t = Mul (r, linear) h = Tanh (t)
        a = Add (h, one) m = Mul (x, half) y = Mul (m, a) }"""
    check_rewrites(PASS, text, ops={"com.microsoft::FastGelu": 1, "Cast": 2, "Tanh": 0}, level=2)

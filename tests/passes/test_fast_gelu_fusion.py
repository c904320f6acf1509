"""The tanh form of GELU, in any spelling, becomes one node."""

import re

import pytest

from ortopt.testing import check_rewrites

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

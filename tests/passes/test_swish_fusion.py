"""x · Sigmoid(alpha · x) becomes Swish(x), where all fusions are wanted."""

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "swish_fusion"
HEAD = "main (float[N,3,8] x) => (float[N,3,8] y)"


@pytest.mark.parametrize("product", ["Mul (x, s)", "Mul (s, x)"])
def test_fuses(product: str) -> None:
    text = f"{HEAD} <float k = {{1.5}}> {{ t = Mul (x, k) s = Sigmoid (t) y = {product} }}"
    check_rewrites(PASS, text, "y = Swish <alpha = 1.5> (x)", opset=24, target="onnx")


def test_silu() -> None:
    text = f"{HEAD} {{ s = Sigmoid (x) y = Mul (x, s) }}"
    check_rewrites(PASS, text, "y = Swish <alpha = 1.0> (x)", opset=24)
    check_keeps(PASS, text, "on the CPU, Swish is", opset=24, options=Options())


KEPT = {
    "another product": (
        "the argument of Sigmoid is not",
        f"{HEAD} {{ n = Neg (x) s = Sigmoid (n) y = Mul (x, s) }}",
    ),
    "the sigmoid is needed": (
        "used elsewhere",
        "main (float[8] x) => (float[8] y, float[8] s) { s = Sigmoid (x) y = Mul (x, s) }",
    ),
    "double precision": (
        "the kernels are for single precision",
        "main (double[8] x) => (double[8] y) <double k = {0.3}> { t = Mul (x, k) s = Sigmoid (t) y = Mul (x, s) }",
    ),
}


test_keeps = keeps(PASS, KEPT, opset=24)


def test_keeps_before_there_is_an_op() -> None:
    check_keeps(PASS, f"{HEAD} {{ s = Sigmoid (x) y = Mul (x, s) }}", opset=23)

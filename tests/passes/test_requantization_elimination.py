"""What is scaled between two quantizations is the same integers, where the scales differ by that factor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.quantized_units import run

PASS = "requantization_elimination"
EVERY = {"q": np.arange(256, dtype=np.uint8)}


def scaled(op: str = "t = Div (d, c)", scale: float | str = 0.02, zero: int = 3, kind: str = "uint8") -> str:
    """Integers of the step 0.12 and the zero point 3 that are divided by the constant c, which is 6."""
    return f"""main ({kind}[N] q) => (float[N] y)
        <float s = {{0.12}}, float r = {{{scale}}}, float c = {{6}}, {kind} z = {{3}}, {kind} o = {{{zero}}}> {{
        d = DequantizeLinear (q, s, z) {op} w = QuantizeLinear (t, r, o) y = DequantizeLinear (w, r, o) }}"""


@pytest.mark.parametrize(
    ("op", "scale"),
    [
        ("t = Div (d, c)", 0.02),
        ("t = Mul (d, c)", 0.72),
        ("t = Mul (c, d)", "0.71999997"),
        ("m = Mul (d, c) t = Mul (m, c)", 4.32),
        ("m = Mul (c, d) t = Div (m, c)", 0.12),
    ],
)
def test_the_same_integers(op: str, scale: float | str) -> None:
    """Each of them, in bits."""
    text = scaled(op, scale)
    result = check_rewrites(PASS, text, after="y = DequantizeLinear (q, r, o)", inputs=EVERY)
    np.testing.assert_array_equal(run(parse(text), EVERY)[0], run(result, EVERY)[0])


def kernel(order: str = "q, s, z, c, u, e", scale: str = "0.02", zero: int = 3, factor: str = "255") -> str:
    """Integers of the step 0.12 that a kernel multiplies by 1/6."""
    return f"""main (uint8[N] q) => (uint8[N] w)
        <float s = {{0.12}}, float r = {{{scale}}}, float u = {{0.00065359479}}, uint8 c = {{{factor}}},
         uint8 e = {{0}}, uint8 z = {{3}}, uint8 o = {{{zero}}}> {{
        w = com.microsoft.QLinearMul ({order}, r, o) }}"""


@pytest.mark.parametrize("order", ["q, s, z, c, u, e", "c, u, e, q, s, z"])
def test_a_kernel(order: str) -> None:
    """In bits, for all integers."""
    text = kernel(order).replace("uint8[N] w)", "uint8[N] y)").replace("r, o) }", "r, o) y = Identity (w) }")
    result = check_rewrites(PASS, text, after="y = Identity (q)", inputs=EVERY)
    np.testing.assert_array_equal(run(parse(text), EVERY)[0], run(result, EVERY)[0])


def test_keeps_halves() -> None:
    model = parse(scaled(), opset=19)
    for value in model.graph.initializers.values():
        if value.dtype == ir.DataType.FLOAT:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16), name=value.name)
            value.dtype = ir.DataType.FLOAT16
    model.graph.outputs[0].dtype = ir.DataType.FLOAT16
    check_keeps(PASS, model, "the numbers are not float32")

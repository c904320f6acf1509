"""What is scaled between two quantizations is the same integers, where the scales differ by that factor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.options import March, Options, Target
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.quantized_units import run
from tests.passes.tables import keeps

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


def test_scales_that_differ_by_rounding() -> None:
    text = scaled("", "0.12000002").replace("(t, r", "(d, r").replace(" float c = {6},", "")
    check_rewrites(PASS, text, after="y = DequantizeLinear (q, r, o)", inputs=EVERY)


@pytest.mark.parametrize("order", ["d, f", "f, d"])
def test_a_factor_that_is_quantized(order: str) -> None:
    """1/6 as quantizers write it: the highest integer, whose step is 1/6 of a 255th."""
    text = (
        scaled(f"f = DequantizeLinear (c, u, e) t = Mul ({order})")
        .replace("float c = {6}", "uint8 c = {255}, float u = {0.00065359479}, uint8 e = {0}")
    )  # fmt: skip
    check_rewrites(PASS, text, after="y = DequantizeLinear (q, r, o)", inputs=EVERY)
    other = text.replace("uint8 e = {0}", "uint8 e = {1}")
    check_keeps(PASS, other, "it rounds to other integers")


def test_users_of_the_floats_keep_them() -> None:
    check_rewrites(
        PASS,
        scaled().replace("[N] y)", "[N] y, float[N] t)"),
        after="d = DequantizeLinear (q, s, z) t = Div (d, c) y = DequantizeLinear (q, r, o)",
        inputs=EVERY,
    )


def test_signed_integers() -> None:
    """ONNX Runtime makes them unsigned within pairs only, but with --march native they are unsigned already."""
    text = scaled(kind="int8")
    check_keeps(PASS, text, "unsigned only within pairs")
    check_rewrites(PASS, text, after="y = DequantizeLinear (q, r, o)", options=Options(march=March.NATIVE))


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


KEPT_KERNELS = {
    "it rounds to other integers": kernel(scale="0.0201"),
    "the zero points differ": kernel(zero=4),
    "negative, zero, very small": kernel(factor="0"),
    "it is not a constant": kernel().replace("[N] q)", "[N] q, uint8[1] c)").replace(" uint8 c = {255},", ""),
    "the factor would raise the rank": kernel().replace("uint8 c =", "uint8[1,1] c =").replace("[N] w", "[1,N] w"),
    "has an input left out": kernel('q, s, "", c, u, e').replace(" uint8 z = {3},", ""),
    "too large or too small": kernel(scale="2e-39").replace("0.12", "1.2e-38"),
}


test_keeps_kernels = keeps(PASS, KEPT_KERNELS)


KEPT = {
    "it rounds to other integers": scaled(scale=0.0201),
    "the zero points differ": scaled(zero=4),
    "the quantized types differ": scaled().replace("uint8 o", "int8 o"),
    "negative, zero, very small": scaled().replace("{6}", "{-6}"),
    "very small or very large": scaled(scale="1.2e-4").replace("{6}", "{1000}"),
    "through constant factors": scaled("t = Add (d, c)"),
    "the factor would raise the rank": scaled().replace("float c =", "float[1,1] c =").replace("[N] y", "[1,N] y"),
    "it is not one number": scaled().replace("float c = {6}", "float[2] c = {6, 6}"),
    "it is not a constant": scaled().replace("q) =>", "q, float c) =>").replace(" float c = {6},", ""),
    "too large or too small": scaled(scale="2e-39").replace("0.12", "1.2e-38"),
    "there are several scales": scaled().replace("float s = {0.12}", "float[2] s = {0.12, 0.12}")
    .replace("uint8 z = {3}", "uint8[2] z = {3, 3}").replace("[N]", "[1,2]"),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT, opset=19)


def test_keeps_halves() -> None:
    model = parse(scaled(), opset=19)
    for value in model.graph.initializers.values():
        if value.dtype == ir.DataType.FLOAT:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16), name=value.name)
            value.dtype = ir.DataType.FLOAT16
    model.graph.outputs[0].dtype = ir.DataType.FLOAT16
    check_keeps(PASS, model, "the numbers are not float32")


def test_other_runtimes() -> None:
    check_keeps(PASS, scaled(), "other runtimes match", target=Target.ONNX)

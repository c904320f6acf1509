"""A constant factor becomes a part of the scale that integers are dequantized by."""

from __future__ import annotations

import pytest

from ortopt.options import March, Options, Target
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "dequantize_scale_folding"


def scaled(op: str = "t = Mul (x, c)", kind: str = "uint8") -> str:
    return f"""main ({kind}[N] q) => (float[N] y) <float s = {{0.1}}, float c = {{4}}, {kind} z = {{100}}> {{
        x = DequantizeLinear (q, s, z) {op} y = Erf (t) }}"""


@pytest.mark.parametrize(("op", "scale"), [("t = Mul (x, c)", 0.4), ("t = Mul (c, x)", 0.4), ("t = Div (x, c)", 0.025)])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_the_scale_takes_the_factor(op: str, scale: float, kind: str) -> None:
    after = f"r = Constant <value_float = {scale}> () t = DequantizeLinear (q, r, z) y = Erf (t)"
    check_rewrites(PASS, scaled(op, kind), after=after)


def test_the_op_of_onnxruntimes_own_domain() -> None:
    text = scaled().replace("DequantizeLinear", "com.microsoft.DequantizeLinear")
    check_rewrites(PASS, text, ops={"com.microsoft::DequantizeLinear": 1, "Mul": 0})


def test_other_readers_keep_their_numbers() -> None:
    text = scaled().replace("y = Erf (t)", "e = Erf (t) y = Mul (e, x)")
    after = """r = Constant <value_float = 0.4> () x = DequantizeLinear (q, s, z) t = DequantizeLinear (q, r, z)
        e = Erf (t) y = Mul (e, x)"""
    check_rewrites(PASS, text, after=after)


def test_signed_integers_of_a_pair() -> None:
    text = """main (float[N] a) => (float[N] y) <float s = {0.1}, float c = {4}, int8 z = {10}> {
        q = QuantizeLinear (a, s, z) x = DequantizeLinear (q, s, z) t = Mul (x, c) y = Erf (t) }"""
    check_keeps(PASS, text, "unsigned only within pairs")
    check_rewrites(PASS, text, ops={"Mul": 0}, options=Options(march=March.NATIVE))
    check_rewrites(PASS, text.replace("int8", "uint8"), ops={"Mul": 0})


KEPT = {
    "no DequantizeLinear comes before": scaled("w = Neg (x) t = Mul (w, c)"),
    "negative, zero, very small": scaled().replace("{4}", "{-4}"),
    "it is not a constant": scaled("t = Div (c, x)"),
    "it is not one number": scaled().replace("float c = {4}", "float[2] c = {4, 4}"),
    "the factor would raise the rank": scaled().replace("float c =", "float[1,1] c =").replace("[N] y", "[1,N] y"),
    "the scale is too large or too small": scaled().replace("{0.1}", "{1e-39}"),
    "single precision only": scaled().replace("float s = {0.1}", "float16 s = {11878}")
    .replace("float c = {4}", "float16 c = {17408}").replace("float[N] y", "float16[N] y"),
    "there are several scales": scaled().replace("float s = {0.1}", "float[2] s = {0.1, 0.2}")
    .replace("uint8 z = {100}", "uint8[2] z = {3, 3}").replace("[N]", "[1,2]"),
    "it will be folded": scaled().replace("uint8[N] q", "float[3] p")
    .replace("float s =", "uint8[3] q = {1, 2, 3}, float s =")
    .replace("float[N] y", "float[3] y").replace("y = Erf (t)", "y = Mul (t, p)"),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT, opset=19)


def test_other_runtimes() -> None:
    check_keeps(PASS, scaled(), None, target=Target.ONNX)

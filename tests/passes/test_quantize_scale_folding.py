"""A constant factor becomes a part of the scale that its product is quantized by."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.options import March, Options, Target
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "quantize_scale_folding"
WIDE = {"x": np.concatenate([np.linspace(-40, 40, 2001), [np.inf, -np.inf, -0.0]]).astype(np.float32)}


def scaled(op: str = "t = Mul (x, c)", kind: str = "uint8") -> str:
    return f"""main (float[N] x) => (float[N] y) <float s = {{0.1}}, float c = {{4}}, {kind} z = {{100}}> {{
        {op} q = QuantizeLinear (t, s, z) y = DequantizeLinear (q, s, z) }}"""


@pytest.mark.parametrize(
    ("op", "scale"), [("t = Mul (x, c)", 0.025), ("t = Mul (c, x)", 0.025), ("t = Div (x, c)", 0.4)]
)
def test_the_scale_takes_the_factor(op: str, scale: float) -> None:
    after = f"r = Constant <value_float = {scale}> () q = QuantizeLinear (x, r, z) y = DequantizeLinear (q, s, z)"
    check_rewrites(PASS, scaled(op), after=after, inputs=WIDE)


def test_signed_integers() -> None:
    text = scaled(kind="int8")
    check_keeps(PASS, text, "unsigned only within pairs")
    check_rewrites(PASS, text, ops={"Mul": 0}, options=Options(march=March.NATIVE))


KEPT = {
    "the value is used elsewhere": scaled().replace("[N] y)", "[N] y, float[N] t)"),
    "no Div or Mul comes before": scaled("t = Add (x, c)"),
    "negative, zero, very small": scaled().replace("{4}", "{-4}"),
    "it is not a constant": scaled("t = Div (c, x)"),
    "it is not one number": scaled().replace("float c = {4}", "float[2] c = {4, 4}"),
    "the factor would raise the rank": scaled().replace("float c =", "float[1,1] c =").replace("[N] y", "[1,N] y"),
    "the scale is too large or too small": scaled().replace("{0.1}", "{1e-39}"),
    "there are several scales": scaled().replace("float s = {0.1}", "float[2] s = {0.1, 0.2}")
    .replace("uint8 z = {100}", "uint8[2] z = {3, 3}").replace("[N]", "[1,2]"),
    "other runtimes": (None, scaled(), {"target": Target.ONNX}),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)

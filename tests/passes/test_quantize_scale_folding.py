"""A constant factor becomes a part of the scale that its product is quantized by."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_rewrites

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

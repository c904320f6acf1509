"""Two roundings to the same grid are one, if the first saturates no earlier; to other grids they are two."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "double_qdq_pairs_remover"
WIDE = {"x": np.concatenate([np.linspace(-200, 200, 4001), [-np.inf, np.inf, -0.0]]).astype(np.float32)}


def twice(first: tuple[str, int], second: tuple[str, int], scales: tuple[str, str] = ("0.5", "0.5")) -> str:
    (one, z), (two, o) = first, second
    return f"""main (float[N] x) => ({two}[N] y)
        <float s = {{{scales[0]}}}, float r = {{{scales[1]}}}, {one} z = {{{z}}}, {two} o = {{{o}}}> {{
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = QuantizeLinear (d, r, o) }}"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("uint8", 128), ("int8", 0)),
        (("int8", -128), ("uint8", 0)),
        (("int8", 5), ("uint8", 133)),
        (("int16", 0), ("int8", 3)),
        (("int16", 0), ("uint8", 128)),
        (("uint16", 40000), ("uint8", 200)),
    ],
)
def test_the_second_saturates_first(first: tuple[str, int], second: tuple[str, int]) -> None:
    check_rewrites(PASS, twice(first, second), after="y = QuantizeLinear (x, r, o)", opset=21, inputs=WIDE)


def test_along_an_axis() -> None:
    check_rewrites(
        PASS,
        """main (float[N,2] x) => (int8[N,2] y) <float[2] s = {0.5, 0.3}, uint8[2] z = {128, 129}, int8[2] o = {0, 1}> {
            q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = QuantizeLinear (d, s, o) }""",
        after="y = QuantizeLinear (x, s, o)",
    )


KEPT = [
    # ONNX Runtime's mistake: it invents one scale for the two.
    ("the scales differ: it rounds twice", twice(("uint8", 0), ("uint8", 0), ("0.5", "0.3"))),
    ("the scales differ: it rounds twice", twice(("uint8", 0), ("uint8", 0), ("0.5", "1.0"))),
    ("the first saturates earlier", twice(("uint8", 0), ("uint8", 10))),
    ("the first saturates earlier", twice(("uint8", 0), ("int8", 0))),
    ("the first saturates earlier", twice(("int8", 0), ("int16", 0))),
    ("too large or too small", twice(("uint8", 128), ("int8", 0), ("1e-40", "1e-40"))),
    ("used elsewhere", twice(("uint8", 128), ("int8", 0)).replace("y)", "y, float[N] d)", 1)),
    ("used elsewhere", twice(("uint8", 128), ("int8", 0)).replace("y)", "y, uint8[N] q)", 1)),
    ("a quantized kernel gives the first type",
     twice(("uint8", 128), ("int8", 0)).replace("(float[N] x)", "(uint8[N] p)")
        .replace("q =", "x = DequantizeLinear (p, s, z) t = Neg (x) q =").replace("(x, s, z) d", "(t, s, z) d")),
    ("no QuantizeLinear comes before",
     """main (uint8[N] q) => (int8[N] y) <float s = {0.5}, uint8 z = {128}, int8 o = {0}> {
        d = DequantizeLinear (q, s, z) y = QuantizeLinear (d, s, o) }"""),
    ("does not give back what it took",
     """main (float[N] x) => (int8[N] y) <float s = {0.5}, uint8 z = {128}, uint8 p = {127}, int8 o = {0}> {
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, p) y = QuantizeLinear (d, s, o) }"""),
    ("it is not a constant",
     """main (float[N] x, float s) => (int8[N] y) <uint8 z = {128}, int8 o = {0}> {
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = QuantizeLinear (d, s, o) }"""),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT, opset=21)

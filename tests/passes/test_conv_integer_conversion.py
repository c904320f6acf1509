"""A ConvInteger of few products becomes a Conv of floats with the same bits."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites, parse
from tests.passes.quantized_units import run

PASS = "conv_integer_conversion"
WEIGHT = "int8[2,1,2,2] w = {-128, 127, 65, -64, 5, 0, -1, 100}"
HEAD = "(uint8[N,2,4,4] x) => (float[N,2,A,B] y)"
CAST = "y = Cast <to = 1> (c)"
DEPTHWISE = "c = ConvInteger <group = 2, pads = [0, 0, 1, 1]>"
EVERY = {"x": np.arange(256, dtype=np.uint8).reshape(8, 2, 4, 4)}


@pytest.mark.parametrize(
    ("zeros", "operands"),
    [("", "x, w"), (", int8 o = {3}", "x, w, , o"), (", int8 o = {-128}, uint8 z = {7}", "x, w, z, o")],
)
def test_the_same_bits(zeros: str, operands: str) -> None:
    text = f"main {HEAD} <{WEIGHT}{zeros}> {{ {DEPTHWISE} ({operands}) {CAST} }}"
    result = check_rewrites(PASS, text, ops={"Conv": 1, "DequantizeLinear": 1, "ConvInteger": 0, "Cast": 0})
    np.testing.assert_array_equal(run(parse(text), EVERY)[0], run(result, EVERY)[0])

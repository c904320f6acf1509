"""A ConvInteger of few products becomes a Conv of floats with the same bits."""

import numpy as np
import pytest

from ortopt.options import Fusions, Options
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.quantized_units import run
from tests.passes.tables import keeps

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


def test_a_zero_point_that_is_computed() -> None:
    check_rewrites(
        PASS,
        f"""main (float[N,2,4,4] a) => (float[N,2,A,B] y, float s) <{WEIGHT}> {{
            x, s, z = DynamicQuantizeLinear (a) {DEPTHWISE} (x, w, z) {CAST} }}""",
        ops={"Conv": 1, "ConvInteger": 0},
    )


MANY = "int8[1,4,1,1] w = {1, 2, 3, 4}"
WIDE = f"int8[2,1,17,16] w = {{{', '.join(['1'] * 544)}}}"


test_keeps = keeps(
    PASS,
    [
        ("but with group 1 to 3",
         f"(uint8[N,4,4,4] x) => (float[N,1,A,B] y) <{MANY}> {{ c = ConvInteger (x, w) {CAST} }}"),
        ("hold all sums", f"(uint8[N,2,32,32] x) => (float[N,2,A,B] y) <{WIDE}> {{ {DEPTHWISE} (x, w) {CAST} }}"),
        ("used elsewhere", f"{HEAD[:-1]}, int32[N,2,A,B] c) <{WEIGHT}> {{ {DEPTHWISE} (x, w) {CAST} }}"),
        ("single precision only",
         f"{HEAD.replace('float', 'float16')} <{WEIGHT}> {{ {DEPTHWISE} (x, w) y = Cast <to = 10> (c) }}"),
        ("no constant", f"{HEAD[:17]}, int8[2,1,2,2] w{HEAD[17:]} {{ {DEPTHWISE} (x, w) {CAST} }}"),
    ],
)  # fmt: skip


def test_the_table_decides() -> None:
    text = f"main {HEAD} <{WEIGHT}> {{ {DEPTHWISE} (x, w) {CAST} }}"
    check_keeps(PASS, text, options=Options(fusions=Fusions.NONE))
    check_keeps(PASS, text, target="onnx")

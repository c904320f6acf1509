"""A Relu or a Clip before a QuantizeLinear goes, where the integers end no later than it cuts off."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "clip_quantize_elimination"
NUMBERS = {"x": np.array([-np.inf, -3, -0.2, -0.0, 0, 0.04, 1, 5.9, 6, 6.1, np.inf, np.nan], np.float32).reshape(2, 6)}


def model(op: str, scale: str = "0.1", zero: str = "0", dtype: str = "uint8", constants: str = "") -> str:
    return f"""main (float[2,6] x) => ({dtype}[2,6] y)
        <float s = {{{scale}}}, {dtype} z = {{{zero}}}{constants}> {{ t = {op} (x) y = QuantizeLinear (t, s, z) }}"""


def clip(low: float, high: float, **more: str) -> str:
    bounds = f", float low = {{{low}}}, float high = {{{high}}}"
    return model("Clip", constants=bounds, **more).replace("Clip (x)", "Clip (x, low, high)")


@pytest.mark.parametrize(
    "text",
    [
        model("Relu"),
        model("Relu", zero="-128", dtype="int8"),
        clip(0, 25.5),
        clip(-12.8, 12.7, zero="0", dtype="int8"),
        clip(0, 6, scale="0.0235294"),
        clip(-3, 25.5001),
        clip(-3, 26),
        model("Clip"),
    ],
)
def test_goes(text: str) -> None:
    check_rewrites(PASS, text, after="y = QuantizeLinear (x, s, z)", inputs=NUMBERS)


def test_scales_of_channels() -> None:
    text = """main (float[2,6] x) => (uint8[2,6] y) <float[2] s = {0.1, 0.2}, uint8[2] z = {0, 0}> {
        t = Relu (x) y = QuantizeLinear <axis = 0> (t, s, z) }"""
    check_rewrites(PASS, text, after="y = QuantizeLinear <axis = 0> (x, s, z)", inputs=NUMBERS)


CUTS = "it cuts off numbers that have integers of their own"


test_keeps = keeps(
    PASS,
    [
        (CUTS, model("Relu", zero="1")),
        (CUTS, model("Relu", zero="0", dtype="int8")),
        (CUTS, clip(0, 25.4)),
        (CUTS, clip(0.06, 30)),
        (CUTS, clip(0, 6)),
        ("not positive", model("Relu", scale="-0.1")),
        ("used elsewhere", model("Relu").replace("uint8[2,6] y)", "uint8[2,6] y, float[2,6] t)")),
        ("no Relu or Clip", model("Sigmoid")),
        ("out of order", clip(3, 2)),
    ],
)


def test_keeps_one_of_two_channels_that_would_show() -> None:
    text = """main (float[2,6] x) => (uint8[2,6] y) <float[2] s = {0.1, 0.2}, uint8[2] z = {0, 1}> {
        t = Relu (x) y = QuantizeLinear <axis = 0> (t, s, z) }"""
    check_keeps(PASS, text, because=CUTS)


def test_keeps_a_bound_between_two_integers() -> None:
    """It becomes 255 as well; but results without rounding, which verification compares too, would differ."""
    check_keeps(PASS, clip(-3, 25.48), "a bound is between two integers")

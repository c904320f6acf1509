"""A factor of each channel before a convolution goes into its weights."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "mul_conv_fusion"
FACTORS = {
    "number": "float k = {2.5}",
    "one": "float[1] k = {-0.5}",
    "each": "float[4,1,1] k = {1.0, 2.0, -3.0, 0.25}",
    "all": "float[1,4,1,1] k = {1.0, 2.0, -3.0, 0.25}",
}
WEIGHTS = ", ".join(str(round(0.1 * (i % 7) - 0.25, 2)) for i in range(6 * 4 * 9))


def model(
    scaling: str = "t = Mul (x, k)",
    conv: str = "y = Conv <pads = [1,1,1,1]> (t, w, b)",
    *,
    k: str = FACTORS["each"],
    w: str = f"float[6,4,3,3] w = {{{WEIGHTS}}}",
    x: str = "N,4,5,5",
    more: str = "",
    also: str = "",
) -> str:
    constants = ", ".join(text for text in (k, w) if text)
    return f"""main (float[{x}] x, float[6] b{more}) => (float[N,6,5,5] y{also}) <{constants}> {{ {scaling} {conv} }}"""


ONE = {"Conv": 1, "Mul": 0, "Div": 0}


@pytest.mark.parametrize("k", FACTORS)
@pytest.mark.parametrize("scaling", ["t = Mul (x, k)", "t = Mul (k, x)", "t = Div (x, k)"])
def test_fuses(k: str, scaling: str) -> None:
    check_rewrites(PASS, model(scaling, k=FACTORS[k]), ops=ONE)


def test_groups() -> None:
    weight = f"float[6,2,3,3] w = {{{', '.join(WEIGHTS.split(', ')[: 6 * 2 * 9])}}}"
    check_rewrites(PASS, model(conv="y = Conv <pads = [1,1,1,1], group = 2> (t, w, b)", w=weight), ops=ONE)


def test_without_a_bias_and_with_strides() -> None:
    text = f"""main (float[N,4,5,5] x) => (float[N,6,2,2] y) <{FACTORS["each"]}, float[6,4,3,3] w = {{{WEIGHTS}}}> {{
        t = Mul (x, k) y = Conv <strides = [2,2]> (t, w) }}"""
    check_rewrites(PASS, text, ops=ONE)


KEPT = {
    "columns": ("it is not one number a channel", model(k="float[5] k = {1, 2, 3, 4, 5}")),
    "a factor of 0": ("a factor is 0", model(k="float[4,1,1] k = {1, 0, 3, 4}")),
    "an infinite factor": ("a number is not finite", model(k="float k = {inf}")),
    "a tiny factor": ("larger or smaller", model(k="float k = {1e-20}")),
    "a factor that is computed": ("no operand is a constant", model(k="", more=", float k")),
    "weights that are computed": ("not a constant", model(w="", more=", float[6,4,3,3] w")),
    "the product is needed": ("Mul's result is used elsewhere", model(also=", float[N,4,5,5] t")),
    "the other way": ("not a constant", model("t = Div (k, x)")),
    "a factor that enlarges": (
        "the number of channels is not fixed",
        model(x="N,1,5,5"),
    ),
    "the half of a GELU": (
        "runtimes recognise GELU",
        model("e = Erf (x) o = Constant <value = float {1}> () a = Add (e, o) g = Mul (x, a) t = Mul (g, k)"),
    ),
    "no product": ("no Mul or Div comes before", model("t = Add (x, k)")),
}


test_keeps = keeps(PASS, KEPT)

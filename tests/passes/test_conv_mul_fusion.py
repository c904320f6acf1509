"""A constant factor for each channel of a convolution goes into its weights and bias."""

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "conv_mul_fusion"
WEIGHT = "float[3,2,1,1] w = {1, 2, 3, 4, 5, 6}"


@pytest.mark.parametrize("shape", ["", "[1]", "[1,1,1,1]", "[3,1,1]", "[1,3,1,1]"])
@pytest.mark.parametrize("op", ["Mul (a, c)", "Mul (c, a)", "Div (a, c)"])
@pytest.mark.parametrize("bias", ["", ", k"])
def test_fuses(shape: str, op: str, bias: str) -> None:
    content = "0.5, 0.3, -3" if "3" in shape else "0.7"
    extra = ", float[3] k = {7, 8, 9}" if bias else ""
    check_rewrites(
        PASS,
        before=f"""main (float[N,2,4,4] x) => (float[N,3,4,4] y) <{WEIGHT}, float{shape} c = {{{content}}}{extra}> {{
            a = Conv (x, w{bias}) y = {op} }}""",
        ops={"Conv": 1, "Mul": 0, "Div": 0},
    )


def test_conv_transpose_with_groups() -> None:
    check_rewrites(
        PASS,
        before="""main (float[1,4,3] x) => (float[1,4,4] y)
            <float[4,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
             float[4,1] c = {1, -2, 3, -4}, float[4] k = {4, 3, 2, 1}> {
            a = ConvTranspose <group = 2> (x, w, k) y = Mul (a, c) }""",
        ops={"ConvTranspose": 1, "Mul": 0},
    )


HEAD = "(float[1,2,4,3] x) => (float[1,3,4,3] y)"
CONV = "a = Conv (x, w)"
KEPT = [
    ("it is not one number a channel", f"{HEAD} <{WEIGHT}, float[3] c = {{1, 2, 3}}> {{ {CONV} y = Mul (a, c) }}"),
    ("the constant enlarges the result", f"(float[1,2,4,3] x) => (float[1,2,4,3] y) <float[1,2,1,1] w = {{1, 2}}, float[2,1,1] c = {{1, 2}}> {{ {CONV} y = Mul (a, c) }}"),  # noqa: E501
    ("comes before", f"{HEAD} <{WEIGHT}, float c = {{1}}> {{ {CONV} y = Div (c, a) }}"),
    ("would not be finite", f"{HEAD} <{WEIGHT}, float c = {{0}}> {{ {CONV} y = Div (a, c) }}"),
    ("used elsewhere", f"{HEAD} <{WEIGHT}> {{ {CONV} y = Mul (a, a) }}"),
    ("it is not a constant", f"(float[1,2,4,3] x, float[3,2,1,1] w) => (float[1,3,4,3] y) <{WEIGHT}, float c = {{2}}> {{ {CONV} y = Mul (a, c) }}"),  # noqa: E501
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_keeps_scales_that_float16_has_not_in_weights() -> None:
    text = f"main {HEAD} <{WEIGHT}, float c = {{0.000001}}> {{ {CONV} y = Mul (a, c) }}"
    check_rewrites(PASS, text)
    check_keeps(PASS, text, "would vanish in float16", options=Options(float16=True))

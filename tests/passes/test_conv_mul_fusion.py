"""A constant factor for each channel of a convolution goes into its weights and bias."""

import pytest

from ortopt.testing import check_rewrites

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

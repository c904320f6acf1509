"""BatchNormalization after Gemm goes into its matrices; the numbers stay."""

import pytest

from ortopt.testing import check_rewrites

PASS = "gemm_bn_fusion"
B = "float[2,3] w = {1, -2, 3, 0.5, 0.25, 4}"
B_BY_ROWS = "float[3,2] w = {1, -2, 3, 0.5, 0.25, 4}"
NORM = "float[3] g = {1, 2, -3}, float[3] b = {0, 1, 2}, float[3] m = {0.5, 0.25, 2}, float[3] v = {1, 4, 0.25}"
BN = "BatchNormalization <epsilon = 0.1> (t, g, b, m, v)"
HEAD = "(float[N,2] x) => (float[N,3] y)"


@pytest.mark.parametrize(
    ("c", "gemm"),
    [
        ("", "(x, w)"),
        (", float[3] c = {1, 2, 3}", "<alpha = 2.0, beta = 0.5> (x, w, c)"),
        (", float[1,3] c = {1, 2, 3}", "(x, w, c)"),
        (", float[1] c = {2}", "<beta = 3.0> (x, w, c)"),
        (", float c = {2}", "(x, w, c)"),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("opset", [7, 9, 15])
def test_fuses(c: str, gemm: str, transposed: bool, opset: int) -> None:
    if not c and opset < 11:
        c, gemm = ", float[3] c = {0, 0, 0}", "(x, w, c)"  # C was required
    if transposed:
        gemm = gemm.replace("<", "<transB = 1, ") if "<" in gemm else f"<transB = 1> {gemm}"
    check_rewrites(
        PASS,
        f"main {HEAD} <{B_BY_ROWS if transposed else B}, {NORM}{c}> {{ t = Gemm {gemm} y = {BN} }}",
        ops={"Gemm": 1, "BatchNormalization": 0},
        opset=opset,
    )

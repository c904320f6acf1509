"""BatchNormalization after Gemm goes into its matrices; the numbers stay."""

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

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


KEPT = [
    ("it is not one number a channel", f"(float[2,2] x) => (float[2,3] y) <{B}, {NORM}, float[2,1] c = {{1, 2}}> {{ t = Gemm (x, w, c) y = {BN} }}"),  # noqa: E501
    ("it is not a constant", f"(float[N,2] x, float[2,3] w) => (float[N,3] y) <{NORM}> {{ t = Gemm (x, w) y = {BN} }}"),
    ("the bias is not a constant", f"(float[N,2] x, float[3] c) => (float[N,3] y) <{B}, {NORM}> {{ t = Gemm (x, w, c) y = {BN} }}"),  # noqa: E501
    ("used elsewhere", f"(float[N,2] x) => (float[N,3] y, float[N,3] t) <{B}, {NORM}> {{ t = Gemm (x, w) y = {BN} }}"),
    ("in training mode", f"{HEAD} <{B}, {NORM}> {{ t = Gemm (x, w) y, p, q = BatchNormalization <training_mode = 1> (t, g, b, m, v) }}"),  # noqa: E501
    ("not be finite", f"{HEAD} <{B}, {NORM.replace('{1, 4, 0.25}', '{-1, 4, 0.25}')}> {{ t = Gemm (x, w) y = {BN} }}"),
    ("no Gemm comes before", f"(float[N,3] x) => (float[N,3] y) <{NORM}> {{ t = Neg (x) y = {BN} }}"),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_keeps_scales_that_float16_has_not_in_weights() -> None:
    tiny = NORM.replace("g = {1, 2, -3}", "g = {0.000001, 0.000002, 0.000003}")
    text = f"main {HEAD} <{B}, {tiny}> {{ t = Gemm (x, w) y = {BN} }}"
    check_rewrites(PASS, text)
    check_keeps(PASS, text, "would vanish in float16", options=Options(float16=True))

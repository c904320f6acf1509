"""Two normalizations in a row are one, of mean 0 and variance 1."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "bn_bn_fusion"
TEXT = """main (float[N,2,M] x) => (float[N,2,M] y)
    <float[2] g = {1, -2}, float[2] b = {3, 4}, float[2] m = {0.5, 0.25}, float[2] v = {1, 4},
     float[2] h = {2, 3}, float[2] c = {-1, 1}> {
    t = BatchNormalization (x, g, b, m, v) y = BatchNormalization <epsilon = 0.001> (t, h, c, m, v) }"""


@pytest.mark.parametrize("opset", [9, 14, 17])
def test_goes(opset: int) -> None:
    check_rewrites(PASS, TEXT, ops={"BatchNormalization": 1}, opset=opset)


test_keeps = keeps(
    PASS,
    [
        ("used elsewhere", TEXT.replace("y)", "y, float[N,2,M] t)", 1)),
        ("not a constant", TEXT.replace("x)", "x, float[2] c)", 1).replace(", float[2] c = {-1, 1}", "")),
        ("would not be finite", TEXT.replace("{1, -2}", "{1e38, 1}").replace("{2, 3}", "{1e38, 1}")),
        ("no BatchNormalization comes before", TEXT.replace("(x, g", "(r, g").replace("t = Batch", "r = Relu (x) t = Batch").replace("(t, h", "(r, h").replace("t = BatchNormalization (r, g, b, m, v)", "")),  # noqa: E501
        ("training mode", TEXT.replace("t = BatchNormalization", "t, e, f = BatchNormalization <training_mode = 1>")),
    ],
)  # fmt: skip

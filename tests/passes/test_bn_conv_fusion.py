"""A normalization in front of a convolution goes into it, unless a padded zero would be shifted."""

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "bn_conv_fusion"
TEXT = """main (float[N,2,4,4] x) => (float[A,B,C,D] y)
    <float[2] g = {1, -2}, float[2] b = {3, 4}, float[2] m = {0.5, 0.25}, float[2] v = {1, 4},
     float[2,2,2,1] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] c = {1, 2}> {
    t = BatchNormalization (x, g, b, m, v) y = Conv (t, w, c) }"""


def test_goes() -> None:
    check_rewrites(PASS, TEXT, ops={"BatchNormalization": 0, "Conv": 1})
    check_rewrites(
        PASS, TEXT.replace("w, c)", "w)").replace(", float[2] c = {1, 2}", ""), ops={"BatchNormalization": 0}
    )


def test_groups() -> None:
    text = TEXT.replace("float[2,2,2,1] w", "float[4,1,2,1] w").replace("Conv (", "Conv <group = 2> (")
    check_rewrites(
        PASS,
        text.replace("c = {1, 2}", "c = {1, 2, 3, 4}").replace("float[2] c", "float[4] c"),
        ops={"Conv": 1, "BatchNormalization": 0},
    )


def test_with_padding() -> None:
    padded = TEXT.replace("Conv (", "Conv <pads = [1, 0, 0, 0]> (")
    check_keeps(PASS, padded, "a padded zero would be shifted")
    check_keeps(PASS, TEXT.replace("Conv (", 'Conv <auto_pad = "SAME_UPPER"> ('), "a padded zero would be shifted")
    unshifted = padded.replace("b = {3, 4}", "b = {0, 0}").replace("m = {0.5, 0.25}", "m = {0, 0}")
    check_rewrites(PASS, unshifted, ops={"BatchNormalization": 0, "Conv": 1})


test_keeps = keeps(
    PASS,
    [
        ("used elsewhere", TEXT.replace("y)", "y, float[N,2,4,4] t)", 1)),
        ("not a constant", TEXT.replace("x)", "x, float[2,2,2,1] w)", 1).replace("float[2,2,2,1] w = {1, 2, 3, 4, 5, 6, 7, 8}, ", "")),  # noqa: E501
        ("bias is not a constant", TEXT.replace("x)", "x, float[2] c)", 1).replace(", float[2] c = {1, 2}", "")),
        ("not a constant", TEXT.replace("x)", "x, float[2] g)", 1).replace("float[2] g = {1, -2}, ", "")),
        ("no floats of its own", TEXT.replace("y)", "y, float[P,Q,R,S] z)", 1).replace("y = Conv", "z = Conv (x, w) y = Conv")),  # noqa: E501
        ("would not be finite", TEXT.replace("{1, -2}", "{3e38, 1}")),
    ],
)  # fmt: skip

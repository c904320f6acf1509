"""Two products with constants are one, where that is no larger."""

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "matmul_reassociation"
TEXT = """main (float[N,S,2] x) => (float[N,S,2] y)
    <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3,2] v = {1, 0, 2, 1, 0, 3}> { t = MatMul (x, w) y = MatMul (t, v) }"""


def test_goes() -> None:
    check_rewrites(
        PASS,
        TEXT,
        "main (float[N,S,2] x) => (float[N,S,2] y) <float[2,2] w = {5, 11, 14, 23}> { y = MatMul (x, w) }",
    )


test_keeps = keeps(
    PASS,
    [
        ("larger", "main (float[N,4] x) => (float[N,4] y) <float[4,1] w = {1, 2, 3, 4}, float[1,4] v = {1, 2, 3, 4}> { t = MatMul (x, w) y = MatMul (t, v) }"),  # noqa: E501
        ("used elsewhere", TEXT.replace("y)", "y, float[N,S,3] t)", 1)),
        ("not a constant", TEXT.replace("x)", "x, float[2,3] w)", 1).replace("float[2,3] w = {1, 2, 3, 4, 5, 6}, ", "")),  # noqa: E501
        ("no floats", TEXT.replace("float[", "int32[")),
        ("no matrix", TEXT.replace("float[3,2] v = {1, 0, 2, 1, 0, 3}", "float[3] v = {1, 0, 2}").replace("(float[N,S,2] y)", "(float[N,S] y)")),  # noqa: E501
        ("would not be finite", TEXT.replace("{1, 2, 3,", "{1e38, 1e38, 1e38,").replace("{1, 0, 2,", "{9, 9, 9,")),
    ],
)  # fmt: skip

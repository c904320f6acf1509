"""A constant added to each channel of a convolution becomes its bias."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "conv_add_fusion"
WEIGHT = "float[3,2,1,1] w = {1, 2, 3, 4, 5, 6}"


@pytest.mark.parametrize("shape", ["", "[1]", "[1,1]", "[1,1,1,1]", "[3,1,1]", "[1,3,1,1]"])
@pytest.mark.parametrize("op", ["Add (a, c)", "Add (c, a)", "Sub (a, c)", "Sum (a, c)"])
@pytest.mark.parametrize("bias", ["", ", k"])
def test_fuses(shape: str, op: str, bias: str) -> None:
    content = "0.5, 0.25, -3" if "3" in shape else "0.5"
    extra = ", float[3] k = {7, 8, 9}" if bias else ""
    check_rewrites(
        PASS,
        before=f"""main (float[N,2,4,4] x) => (float[N,3,4,4] y) <{WEIGHT}, float{shape} c = {{{content}}}{extra}> {{
            a = Conv (x, w{bias}) y = {op} }}""",
        ops={"Conv": 1, "Add": 0, "Sub": 0, "Sum": 0},
    )


def test_conv_transpose_with_groups() -> None:
    check_rewrites(
        PASS,
        before="""main (float[1,2,3] x) => (float[1,4,4] y)
            <float[2,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[4,1] c = {1, 2, 3, 4}> {
            a = ConvTranspose <group = 2> (x, w) y = Add (a, c) }""",
        ops={"ConvTranspose": 1, "Add": 0},
    )


def test_twice() -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[N,2,4,4] x) => (float[N,3,4,4] y)
            <{WEIGHT}, float c = {{1}}, float[3,1,1] d = {{1, 2, 3}}> {{
            a = Conv (x, w) b = Add (a, c) y = Sub (b, d) }}""",
        ops={"Conv": 1, "Add": 0, "Sub": 0},
    )


HEAD = "(float[1,2,4,3] x) => (float[1,3,4,3] y)"
CONV = "a = Conv (x, w)"
KEPT = [
    ("it is not one number a channel", f"{HEAD} <{WEIGHT}, float[3] c = {{1, 2, 3}}> {{ {CONV} y = Add (a, c) }}"),
    ("the constant enlarges the rank", f"(float[1,2,4,3] x) => (float[1,1,3,4,3] y) <{WEIGHT}, float[1,1,3,1,1] c = {{1, 2, 3}}> {{ {CONV} y = Add (a, c) }}"),  # noqa: E501
    ("the constant enlarges the result", f"(float[1,2,4,3] x) => (float[1,5,4,3] y) <float[1,2,1,1] w = {{1, 2}}, float[5,1,1] c = {{1, 2, 3, 4, 5}}> {{ {CONV} y = Add (a, c) }}"),  # noqa: E501
    ("it is not a constant", f"(float[1,2,4,3] x, float c) => (float[1,3,4,3] y) <{WEIGHT}> {{ {CONV} y = Add (a, c) }}"),  # noqa: E501
    ("it is not a constant", f"(float[1,2,4,3] x, float c) => (float[1,3,4,3] y) <{WEIGHT}, float c = {{1}}> {{ {CONV} y = Add (a, c) }}"),  # noqa: E501
    ("comes before", f"{HEAD} <{WEIGHT}, float c = {{1}}> {{ {CONV} y = Sub (c, a) }}"),
    ("used elsewhere", f"{HEAD} <{WEIGHT}, float c = {{1}}> {{ {CONV} b = Add (a, c) y = Mul (a, b) }}"),
    ("used elsewhere", f"{HEAD} <{WEIGHT}> {{ {CONV} y = Add (a, a) }}"),
    ("would not be finite", f"{HEAD} <{WEIGHT}, float[3] k = {{3e38, 0, 0}}, float c = {{3e38}}> {{ a = Conv (x, w, k) y = Add (a, c) }}"),  # noqa: E501
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)

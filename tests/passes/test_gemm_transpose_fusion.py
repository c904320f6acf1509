"""A Transpose of a matrix before or after a Gemm becomes one of its flags."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "gemm_transpose_fusion"


@pytest.mark.parametrize(
    ("a", "b", "before", "after"),
    [
        ("8,M", "8,4", "t = Transpose (a) y = Gemm (t, b, c)", "y = Gemm <transA = 1> (a, b, c)"),
        ("M,8", "8,4", "t = Transpose <perm = [1, 0]> (a) y = Gemm <transA = 1, alpha = 2.0> (t, b, c)",
         "y = Gemm <alpha = 2.0> (a, b, c)"),
        ("M,8", "4,8", "t = Transpose <perm = [1, 0]> (b) y = Gemm <beta = 0.5> (a, t, c)",
         "y = Gemm <beta = 0.5, transB = 1> (a, b, c)"),
        ("8,M", "4,8", "t = Transpose (a) u = Transpose (b) y = Gemm (t, u)",
         "y = Gemm <transA = 1, transB = 1> (a, b)"),
    ],
)  # fmt: skip
def test_before(a: str, b: str, before: str, after: str) -> None:
    check_rewrites(PASS, f"main (float[{a}] a, float[{b}] b, float[4] c) => (float[M,4] y) {{ {before} }}", after=after)


def test_one_transpose_of_many_gemms() -> None:
    check_rewrites(
        PASS,
        """main (float[3,2] a, float[3,4] b, float[3,2] c) => (float[2,4] y, float[2,2] z) {
            t = Transpose (a) y = Gemm (t, b) z = Gemm (t, c) }""",
        after="y = Gemm <transA = 1> (a, b) z = Gemm <transA = 1> (a, c)",
    )


@pytest.mark.parametrize(
    ("a", "b", "flags", "turned"),
    [
        ("M,8", "8,4", "", "transA = 1, transB = 1"),
        ("M,8", "4,8", "<transB = 1>", "transB = 1"),
        ("8,M", "8,4", "<transA = 1>", "transA = 1"),
        ("8,M", "4,8", "<transA = 1, transB = 1, alpha = 3.0>", "alpha = 3.0"),
    ],
)
def test_after(a: str, b: str, flags: str, turned: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[{a}] a, float[{b}] b) => (float[4,M] y) {{ t = Gemm {flags} (a, b) y = Transpose (t) }}",
        after=f"y = Gemm <{turned}> (b, a)".replace("<>", ""),
    )


@pytest.mark.parametrize(
    "c",
    [
        "float c = {2.5}",
        "float[1,1] c = {2.5}",
        "float[3] c = {1, 2, 3}",
        "float[2,1] c = {1, 2}",
        "float[2,3] c = {1, 2, 3, 4, 5, 6}",
    ],
)
def test_c_is_transposed_when_it_is_constant(c: str) -> None:
    check_rewrites(
        PASS,
        f"""main (float[2,5] a, float[5,3] b) => (float[3,2] y) <{c}> {{
            t = Gemm <beta = 0.5> (a, b, c) y = Transpose (t) }}""",
        ops={"Gemm": 1, "Transpose": 0},
    )


def test_c_of_one_number_may_be_an_input() -> None:
    check_rewrites(
        PASS,
        "main (float[2,5] a, float[5,3] b, float[1] c) => (float[3,2] y) { t = Gemm (a, b, c) y = Transpose (t) }",
        after="y = Gemm <transA = 1, transB = 1> (b, a, c)",
    )


@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_nothing_to_multiply(shape: tuple[int, int]) -> None:
    rows, inner = shape
    check_rewrites(
        PASS,
        f"main (float[{inner},{rows}] a, float[{inner},3] b) => (float[{rows},3] y) {{ t = Transpose (a) y = Gemm (t, b) }}",  # noqa: E501 -- one text
        ops={"Transpose": 0},
    )


HEAD = "(float[3,3] a, float[3,3] b, float[3] c)"
KEPT = [
    ("no operand comes from", f"{HEAD} => (float[3,3] y) {{ t = Transpose <perm = [0, 1]> (a) y = Gemm (t, b) }}"),
    ("no operand comes from", f"{HEAD} => (float[3,3] y, float[3,3] t) {{ t = Transpose (a) y = Gemm (t, b) }}"),
    ("no operand comes from", f"{HEAD} => (float[3,3] y, float[3,3] z) {{ t = Transpose (a) y = Gemm (t, b) z = Neg (t) }}"),  # noqa: E501
    ("it moves nothing", f"{HEAD} => (float[3,3] y) {{ t = Gemm (a, b) y = Transpose <perm = [0, 1]> (t) }}"),
    ("C would have to be transposed", f"{HEAD} => (float[3,3] y) {{ t = Gemm (a, b, c) y = Transpose (t) }}"),
    ("used elsewhere", f"{HEAD} => (float[3,3] y, float[3,3] t) {{ t = Gemm (a, b) y = Transpose (t) }}"),
    (
        "C would have to be transposed",
        """main (float[2,5] a, float[5,3] b, float[3] c = {1, 2, 3}) => (float[3,2] y) {
            t = Gemm (a, b, c) y = Transpose (t) }""",
    ),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)

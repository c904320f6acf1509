"""A product of matrices and a vector becomes one with a matrix of one column, for the CPU of ONNX Runtime."""

from __future__ import annotations

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "matmul_vector_conversion"
AFTER = """main ({dtype}[{a}] a, {dtype}[{b}] b) => ({dtype}[{y}] y) <int64[1] one = {{1}}, int64[1] last = {{-1}}> {{
    c = Unsqueeze (b, one) p = MatMul (a, c) y = Squeeze (p, last) }}"""


def model(a: str, b: str, y: str, dtype: str = "float") -> str:
    return f"main ({dtype}[{a}] a, {dtype}[{b}] b) => ({dtype}[{y}] y) {{ y = MatMul (a, b) }}"


@pytest.mark.parametrize(
    ("a", "b", "y"), [("M,8", "8", "M"), ("B,S,8", "8", "B,S"), ("3,8", "8", "3"), ("1,M,8", "8", "1,M")]
)
def test_rewrites(a: str, b: str, y: str) -> None:
    check_rewrites(PASS, model(a, b, y), AFTER.format(dtype="float", a=a, b=b, y=y))


def test_double() -> None:
    check_rewrites(PASS, model("M,8", "8", "M", "double"), AFTER.format(dtype="double", a="M,8", b="8", y="M"))


def test_a_constant_vector() -> None:
    """It is stored as a column: a second run would have found an Unsqueeze of a constant."""
    check_rewrites(
        PASS,
        "main (float[M,3] a) => (float[M] y) <float[3] b = {1, -2, 3}> { y = MatMul (a, b) }",
        after="""main (float[M,3] a) => (float[M] y) <float[3,1] c = {1, -2, 3}, int64[1] last = {-1}> {
            p = MatMul (a, c) y = Squeeze (p, last) }""",
    )


def test_axes_that_are_attributes() -> None:
    check_rewrites(PASS, model("M,8", "8", "M"), ops={"Unsqueeze": 1, "MatMul": 1, "Squeeze": 1}, opset=12)


KEPT = {
    "the second operand is no vector": model("M,8", "8,N", "M,N"),
    "the first operand is a vector": model("8", "8", "").replace("float[] y", "float y"),
    "of nothing ONNX Runtime clears one number": model("M,K", "K", "M"),
    "there is one row": model("1,8", "8", "1"),
    "the kernel that is slow is one of floats": model("M,8", "8", "M", "int64"),
    "a form for ONNX Runtime": (model("M,8", "8", "M"), {"target": "onnx"}),
}


test_keeps = keeps(PASS, KEPT)


def test_keeps_for_other_providers() -> None:
    options = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    check_keeps(PASS, model("M,8", "8", "M"), "it serves the CPU", options=options)

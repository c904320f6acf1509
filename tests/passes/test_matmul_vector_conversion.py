"""A product of matrices and a vector becomes one with a matrix of one column, for the CPU of ONNX Runtime."""

from __future__ import annotations

from ortopt.options import Options
from ortopt.testing import check_keeps

PASS = "matmul_vector_conversion"


def model(a: str, b: str, y: str, dtype: str = "float") -> str:
    return f"main ({dtype}[{a}] a, {dtype}[{b}] b) => ({dtype}[{y}] y) {{ y = MatMul (a, b) }}"


def test_keeps_for_other_providers() -> None:
    options = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    check_keeps(PASS, model("M,8", "8", "M"), "it serves the CPU", options=options)

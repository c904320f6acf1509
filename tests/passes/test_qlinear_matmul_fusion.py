"""A MatMul between DequantizeLinear and QuantizeLinear becomes a kernel of integers."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.quantized_units import Tensor, check_unit, unit

PASS = "qlinear_matmul_fusion"
A = Tensor("N,40", 0.031)
B = Tensor("40,5", 0.0173, 3, "int8")
Y = Tensor("N,5", 0.1, 99)
MATMUL = "t = MatMul (a_x, b_x)"
SCALES = "float[5] b_s = {0.01, 0.02, 0.03, 0.04, 0.05}"


def by_columns(axis: int = 1, scales: str = SCALES) -> str:
    text = unit(MATMUL, Y, a=A, b=B._replace(scale=scales, zero=None))
    return text.replace("b_x = DequantizeLinear", f"b_x = DequantizeLinear <axis = {axis}>")


@pytest.mark.parametrize(
    ("a", "b", "y"),
    [
        ("N,40", "40,5", "N,5"),
        ("2,3,40", "40,5", "2,3,5"),
        ("2,3,40", "2,40,5", "2,3,5"),
        ("2,1,3,40", "3,40,5", "2,3,3,5"),
        ("0,40", "40,5", "0,5"),
    ],
)
@pytest.mark.parametrize("types", ["uint8 int8", "uint8 uint8", "int8 int8"])
def test_shapes_and_types(a: str, b: str, y: str, types: str) -> None:
    left, right = types.split()
    text = unit(
        MATMUL, Y._replace(dims=y, dtype=left), a=A._replace(dims=a, dtype=left), b=B._replace(dims=b, dtype=right)
    )
    check_unit(check_rewrites, PASS, text, "QLinearMatMul")


def test_scales_of_columns() -> None:
    check_unit(check_rewrites, PASS, by_columns(), "QLinearMatMul")

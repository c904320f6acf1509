"""A Concat between DequantizeLinear and QuantizeLinear becomes one of integers, bit for bit."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.quantized_units import Tensor, check_unit, unit

PASS = "qlinear_concat_fusion"
A = Tensor("2,N,4", 0.031)
B = Tensor("2,N,3", 0.0173, 200)
Y = Tensor("2,N,7", 0.0427, 99)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("axis", [-1, 2])
def test_parts_of_other_scales(axis: int, dtype: str) -> None:
    a, b, y = (one._replace(dtype=dtype, zero=one.zero and one.zero // 2) for one in (A, B, Y))
    text = unit(f"t = Concat <axis = {axis}> (a_x, b_x)", y, a=a, b=b)
    check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearConcat", exact=True)


def test_one_scale_and_a_part_without_elements() -> None:
    a, b, y = (one._replace(scale=0.05, zero=3) for one in (A, B._replace(dims="2,N,0"), Y._replace(dims="2,N,4")))
    text = unit("t = Concat <axis = -1> (a_x, b_x)", y, a=a, b=b)
    check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearConcat", exact=True)

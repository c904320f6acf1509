"""A Where between DequantizeLinear and QuantizeLinear becomes one of integers, bit for bit."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.quantized_units import Tensor, check_unit, unit

PASS = "qlinear_where_fusion"
A = Tensor("5,7", 0.031)
B = Tensor("7", 0.0173, 20)
Y = Tensor("5,7", 0.0427, 99)
WHERE = "t = Where (c, a_x, b_x)"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("condition", ["5,7", "5,1", "1"])
def test_where(condition: str, dtype: str) -> None:
    a, b, y = (one._replace(dtype=dtype) for one in (A, B, Y))
    text = unit(WHERE, y, inputs=f", bool[{condition}] c", a=a, b=b)
    check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearWhere", exact=True)


def test_no_elements() -> None:
    text = unit(WHERE, Y._replace(dims="0,7"), inputs=", bool[0,1] c", a=A._replace(dims="0,7"), b=B)
    check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearWhere", exact=True)

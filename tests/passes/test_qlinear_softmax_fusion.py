"""A Softmax between DequantizeLinear and QuantizeLinear becomes a kernel with a table."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.quantized_units import Tensor, check_unit, unit

PASS = "qlinear_softmax_fusion"
X = Tensor("4,6,9", 0.031)
Y = Tensor("4,6,9", 1 / 256, 0)
SOFTMAX = "t = Softmax <axis = {}> (x_x)"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("scale", [0.001, 0.031, 0.7])
def test_softmax(axis: int, dtype: str, scale: float) -> None:
    zero = 0 if dtype == "uint8" else -128
    text = unit(SOFTMAX.format(axis), Y._replace(dtype=dtype, zero=zero), x=X._replace(dtype=dtype, scale=scale))
    check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearSoftmax")

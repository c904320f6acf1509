"""A Softmax between DequantizeLinear and QuantizeLinear becomes a kernel with a table."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
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


@pytest.mark.parametrize(
    ("dims", "because"),
    [("3,1", "overflows"), ("0,5", "no elements"), ("N,5", "no elements"), ("3,N", "no elements")],
)
def test_keeps_sizes_at_which_the_kernel_fails(dims: str, because: str) -> None:
    """Of one element it makes 0 instead of 1, and of none an error."""
    check_keeps(PASS, unit("t = Softmax (x_x)", Y._replace(dims=dims), x=X._replace(dims=dims)), because=because)


@pytest.mark.parametrize("scale", [0.003921569, 0.0035, 0.4])
def test_keeps_a_step_of_which_one_is_no_multiple(scale: float) -> None:
    """The kernel multiplies by ⌊1 / step⌋: 254 where it should be 254.99998."""
    check_keeps(PASS, unit(SOFTMAX.format(-1), Y._replace(scale=scale), x=X), because="of which one is no multiple")


def test_keeps_what_flattens() -> None:
    check_keeps(PASS, unit(SOFTMAX.format(1), Y, x=X), because="before opset 13", opset=12)


def test_keeps_what_is_long() -> None:
    x, y = X._replace(dims="1,20000"), Y._replace(dims="1,20000")
    check_keeps(PASS, unit("t = Softmax (x_x)", y, x=x), because="too many terms")


def test_keeps_two_types() -> None:
    check_keeps(PASS, unit("t = Softmax (x_x)", Y._replace(dtype="int8"), x=X), because="not of one type")

"""Means between DequantizeLinear and QuantizeLinear become kernels of integers."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.quantized_units import Tensor, check_unit, unit

PASS = "qlinear_pool_fusion"
X = Tensor("2,5,9,9", 0.031)
POOL = "t = AveragePool <kernel_shape = [3, 3]{}> (x_x)"


def result(size: int, dtype: str = "uint8") -> Tensor:
    return Tensor(f"2,5,{size},{size}", 0.0173, 20, dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ("", 7),
        (", strides = [2, 2]", 4),
        (", pads = [1, 1, 1, 1]", 9),
        (", pads = [1, 1, 1, 1], count_include_pad = 1", 9),
        (', auto_pad = "SAME_UPPER", strides = [2, 2]', 5),
    ],
)
def test_windows(attributes: str, size: int, dtype: str) -> None:
    text = unit(POOL.format(attributes), result(size, dtype), x=X._replace(dtype=dtype))
    check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearAveragePool")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("dims", ["2,5,9,9", "2,5,7", "1,3,4,4,4", "2,5,1,1", "0,5,4,4"])
def test_whole_images(dims: str, dtype: str) -> None:
    ones = ",".join([*dims.split(",")[:2], *("1" for _ in dims.split(",")[2:])])
    text = unit("t = GlobalAveragePool (x_x)", Tensor(ones, 0.011, 9, dtype), x=X._replace(dims=dims, dtype=dtype))
    check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearGlobalAveragePool")


def test_no_images() -> None:
    text = unit(POOL.format(""), result(7)._replace(dims="0,5,7,7"), x=X._replace(dims="0,5,9,9"))
    check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearAveragePool")

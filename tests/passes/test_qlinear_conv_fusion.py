"""A Conv between DequantizeLinear and QuantizeLinear becomes a kernel of integers."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from tests.passes.quantized_units import Tensor, check_unit, unit
from tests.passes.tables import keeps

PASS = "qlinear_conv_fusion"
X = Tensor("2,4,9,9", 0.02, 90)
Y = Tensor("2,4,9,9", 0.3, 120)
SCALES = (0.01, 0.02, 0.015, 0.0125)
CONV = "t = Conv <pads = [1, 1, 1, 1]> (x_x, w_x{})"


def numbers(content: object) -> str:
    return (
        "{"
        + ", ".join(
            str(number) if isinstance(number, int) else f"{number:.9g}"
            for number in np.asarray(content).reshape(-1).tolist()
        )
        + "}"
    )


def convolution(
    *,
    dims: str = "4,4,3,3",
    scales: tuple[float, ...] | float = SCALES,
    zeros: tuple[int, ...] | int = 0,
    dtype: str = "int8",
    bias: str = "",
    attributes: str = "pads = [1, 1, 1, 1]",
    x: Tensor = X,
    y: Tensor = Y,
    axis: int = 0,
) -> str:
    """A unit with a constant weight; the bias is a statement that gives c, with its constants before a semicolon."""
    size = int(np.prod([int(dim) for dim in dims.split(",")]))
    low, high = (-64, 64) if dtype == "int8" else (0, 256)
    weight = np.random.default_rng(5).integers(low, high, size)
    scale_dims = "" if isinstance(scales, float) else f"[{len(scales)}]"
    zero_dims = "" if isinstance(zeros, int) else f"[{len(zeros)}]"
    constants, _, statement = bias.rpartition(";")
    more = f"""{dtype}[{dims}] w = {numbers(weight)}, float{scale_dims} w_s = {numbers(scales)},
        {dtype}{zero_dims} w_z = {numbers(zeros)}, {constants}"""
    if scale_dims and not zero_dims:
        more = more.replace(
            f"{dtype} w_z = {numbers(zeros)}", f"{dtype}{scale_dims} w_z = {numbers([zeros] * len(scales))}"
        )
    operands = "x_x, w_x, c" if statement else "x_x, w_x"
    op = f"w_x = DequantizeLinear <axis = {axis}> (w, w_s, w_z) {statement} t = Conv <{attributes}> ({operands})"
    return unit(op, y, more, x=x)


def bias(scale: object = 0.02 * np.array(SCALES), content: object = (1000, -2000, 30000, 7), zero: str = "") -> str:
    """A bias of int32 in units of the products of scales, or of others."""
    dims = "" if np.ndim(scale) == 0 else f"[{np.size(scale)}]"
    given = f"int32[4] c_z = {{{zero}, {zero}, {zero}, {zero}}}, " if zero else ""
    constants = f"int32[4] c_q = {numbers(content)}, float{dims} c_s = {numbers(scale)}, {given}"
    return f"{constants}; c = DequantizeLinear <axis = 0> (c_q, c_s{', c_z' if zero else ''})"


@pytest.mark.parametrize("types", ["uint8 int8", "uint8 uint8", "int8 int8"])
@pytest.mark.parametrize("scales", [SCALES, 0.01])
def test_types(types: str, scales: tuple[float, ...] | float) -> None:
    left, right = types.split()
    x, y = (one._replace(dtype=left, zero=20) for one in (X, Y))
    zeros = 0 if right == "int8" else 128
    text = convolution(scales=scales, zeros=zeros, dtype=right, x=x, y=y, bias=bias(0.02 * np.asarray(scales)))
    check_unit(check_rewrites, PASS, text, "QLinearConv")


@pytest.mark.parametrize(
    ("x", "w", "y", "attributes"),
    [
        ("2,4,9", "4,4,3", "2,4,7", "strides = [1]"),
        ("1,4,5,5,5", "4,4,3,3,3", "1,4,3,3,3", "group = 1"),
        ("2,8,9,9", "4,4,3,3", "2,4,7,7", "group = 2"),
        ("2,4,9,9", "4,1,3,3", "2,4,7,7", "group = 4"),
        ("2,4,9,9", "4,4,3,3", "2,4,5,5", 'auto_pad = "SAME_UPPER", strides = [2, 2]'),
        ("2,4,9,9", "4,4,3,3", "2,4,9,9", "dilations = [2, 2], pads = [2, 2, 2, 2]"),
        ("0,4,9,9", "4,4,1,1", "0,4,9,9", "group = 1"),
    ],
)
def test_forms(x: str, w: str, y: str, attributes: str) -> None:
    text = convolution(dims=w, attributes=attributes, x=X._replace(dims=x), y=Y._replace(dims=y))
    check_unit(check_rewrites, PASS, text, "QLinearConv")


def test_zero_points_of_channels_that_are_equal() -> None:
    check_unit(check_rewrites, PASS, convolution(zeros=(3, 3, 3, 3)), "QLinearConv")


@pytest.mark.parametrize("with_zero", [True, False])
def test_a_bias_in_the_kernels_units_stays(with_zero: bool) -> None:
    text = convolution(bias=bias(zero="0" if with_zero else ""))
    result = check_rewrites(PASS, text, ops={"QLinearConv": 1})
    assert result.graph.initializers["c_q"].const_value is not None


def test_a_bias_that_other_units_hold_exactly() -> None:
    """Exports store equal biases, zeros as a rule, once: for one of the layers that share them the units are right."""
    text = convolution(bias=bias(0.05 * np.ones(4), content=(0, 0, 0, 0)), y=Y._replace(scale=0.01))
    check_unit(check_rewrites, PASS, text, "QLinearConv")


def float_bias(content: str) -> str:
    text = convolution(bias=f"float[4] d = {content}, ; c = Identity (d)").replace("c = Identity (d)", "")
    return text.replace("w_x, c)", "w_x, d)")


@pytest.mark.parametrize(
    "text",
    [
        float_bias("{0.1, -0.32345, 2.5, 0}"),
        convolution(bias=bias(0.00031 * np.ones(4))),
        convolution(bias=bias(0.00031)),
    ],
)
def test_a_bias_that_is_rounded(text: str) -> None:
    """To a unit of 0.0002 to 0.0004, where the result's step is 0.3."""
    check_unit(check_rewrites, PASS, text, "QLinearConv")


def of_many_channels() -> str:
    x, y = X._replace(dims="1,40000,1,1"), Y._replace(dims="1,4,1,1")
    return convolution(dims="4,40000,1,1", x=x, y=y, attributes="group = 1")


test_keeps = keeps(
    PASS,
    [
        ("zero points of their own", convolution(zeros=(1, 2, 3, 4))),
        ("not those of channels", convolution(axis=1)),
        ("might overflow", of_many_channels()),
        ("beyond int32", float_bias("{3e38, 0, 0, 0}")),
        ("too few digits", convolution(bias=bias(0.00031 * np.ones(4)), y=Y._replace(scale=0.01))),
        ("has a zero point", convolution(bias=bias(zero="3"))),
        ("might overflow", convolution(bias=bias(content=(2**31 - 1, 0, 0, 0)))),
        ("kernel", convolution(x=X._replace(dtype="int8"), y=Y._replace(dtype="int8"), dtype="uint8", zeros=128)),
        ("", convolution(y=Y._replace(dtype="int8", zero=0))),
        ("no Conv comes before", convolution().replace("t = Conv", "c = Conv").replace("y = Q", "t = Relu (c) y = Q")),
        ("no constant", unit(CONV.format(""), Y, x=X, w=Tensor("4,4,3,3", 0.01, 0, "int8"))),
        ("no constant", unit(CONV.format(", c"), Y, inputs=", float[4] c", x=X, w=Tensor("4,4,3,3", 0.01, 0, "int8"))),
        (None, convolution(), {"target": "onnx"}),
    ],
)

"""A mean over height and width is a pooling between convolutions, where the layout is blocked."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "spatial_mean_conversion"
WEIGHTS = ", ".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(256))
MEAN = "m = ReduceMean <axes = [2, 3], keepdims = 1> (r)"


def model(mean: str = MEAN, image: str = "N,16,6,5", before: str = "a = Conv (x, w) r = Relu (a)") -> str:
    nodes = f"{before} {mean} y = Conv (m, w)"
    constants = {"two": "float two = {2}", "axes": "int64[2] axes = {-1, 2}"}
    used = "".join(f", {text}" for name, text in constants.items() if f", {name})" in nodes)
    return f"main (float[{image}] x) => (float[A,B,C,D] y) <float[16,16,1,1] w = {{{WEIGHTS}}}{used}> {{ {nodes} }}"


OPS = {"Conv": 2, "Relu": 1, "GlobalAveragePool": 1}


@pytest.mark.parametrize("axes", ["[2, 3]", "[-1, -2]"])
def test_axes_that_are_an_attribute(axes: str) -> None:
    check_rewrites(PASS, model(MEAN.replace("[2, 3]", axes), "2,16,6,5"), ops=OPS, opset=13)


def test_axes_that_are_an_input() -> None:
    check_rewrites(PASS, model("m = ReduceMean (r, axes)", "2,16,6,5"), ops=OPS, opset=18)


def test_through_constants_that_scale_the_image() -> None:
    before = "a = Conv (x, w) s = Mul (a, two) r = HardSwish (s)"
    check_rewrites(PASS, model(before=before), ops={"Conv": 2, "Mul": 1, "HardSwish": 1, "GlobalAveragePool": 1})


def test_other_sizes_that_are_never_zero() -> None:
    check_rewrites(PASS, model(image="N,16,H,W"), ops=OPS)


ROWS = {"Conv": 2, "Relu": 1, "AveragePool": 1}


@pytest.mark.parametrize("axis", ["2", "3"])
def test_one_axis(axis: str) -> None:
    after = check_rewrites(PASS, model(MEAN.replace("2, 3", axis)), ops=ROWS)
    (pooled,) = (node for node in after.graph if node.op_type == "AveragePool")
    assert list(pooled.attributes["kernel_shape"].as_ints()) == ([6, 1] if axis == "2" else [1, 5])


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_one_axis_that_is_dropped(opset: int) -> None:
    text = model("m = ReduceMean <axes = [2], keepdims = 0> (r)", "N,16,6,W").replace("y = Conv (m, w)", "y = Abs (m)")
    text = text.replace("float[A,B,C,D] y", "float[A,B,C] y")
    check_rewrites(PASS, text, ops={"Conv": 1, "Relu": 1, "AveragePool": 1, "Squeeze": 1}, opset=opset)


KEPT = {
    "the size of the axis is not fixed": model(MEAN.replace("2, 3", "2"), "N,16,H,5"),
    "the axis has one element": model(MEAN.replace("2, 3", "2"), "N,16,1,5"),
    "the image may be empty": model(image="N,16,H,W", before="a = Conv (x, w) r = MaxPool <kernel_shape = [2, 2]> (a)"),
    "the batch may be empty": model(MEAN.replace("[2, 3]", "[-1, -2]")),
    "it is no mean over height and width": model(MEAN.replace("[2, 3]", "[1, 2]")),
    "it drops the axes": model("k = ReduceMean <axes = [2, 3], keepdims = 0> (r) m = Unsqueeze (k, axes)"),
    "the image is not in the blocked layout": model(before="r = Relu (x)"),
    "the channels fill no blocks": model(image="N,8,6,5", before="r = Relu (x)").replace("[16,16,1,1]", "[32,8,1,1]"),
}


test_keeps = keeps(PASS, KEPT, opset=17)


def test_other_runtimes_and_all_axes() -> None:
    check_keeps(PASS, model(), None, target="onnx")
    check_keeps(PASS, model("m = ReduceMean (r)"), "it is no mean over height and width", opset=18)

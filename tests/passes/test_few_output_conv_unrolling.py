"""A convolution with few outputs computes four pixels at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ortopt.options import March
from ortopt.testing import all_fusions, check_keeps, check_rewrites
from ortopt.transformers.lowering.onnxruntime_cpu import _channel_blocks as channel_blocks
from tests.passes.tables import keeps

PASS = "few_output_conv_unrolling"


def model(
    attributes: str = "pads = [1, 1, 1, 1]",
    *,
    kernel: tuple[int, int, int, int] = (2, 8, 3, 3),
    image: str = "2,8,16,18",
    result: str = "A,B,C,D",
    conv: str = "Conv",
    bias: bool = True,
    dtype: str = "float",
    more: str = "",
    given: str = "",
) -> str:
    """A convolution with few outputs."""
    count = kernel[0] * kernel[1] * kernel[2] * kernel[3]
    numbers = ",".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(count))
    shape = ",".join(map(str, kernel))
    offsets = ",".join(str(place + 0.5) for place in range(kernel[0]))
    constants = f"{dtype}[{shape}] w = {{{numbers}}}" + f", {dtype}[{kernel[0]}] b = {{{offsets}}}" * bias
    return f"""main ({dtype}[{image}] x{given}) => ({dtype}[{result}] y) <{constants}> {{
        y = {conv} <{attributes}> (x, w{", b" if bias else ""}{more})
    }}"""


DONE = {"Conv": 1, "DepthToSpace": 1}
NOT_MEASURED = "nobody has measured whether Conv with four pixels as channels is faster"
REWRITTEN = {
    "two outputs": (model(), DONE),
    "three outputs of many channels": (model(kernel=(3, 32, 3, 3), image="1,32,16,16"), DONE),
    "one output": (model(kernel=(1, 8, 3, 3)), DONE),
    "no bias": (model(bias=False), DONE),
    "no padding": (model("group = 1", image="1,8,18,20"), DONE),
    "uneven padding": (model("pads = [2, 0, 1, 3]", image="1,8,17,17"), DONE),
    "an even kernel": (model("pads = [1, 1, 2, 2]", kernel=(2, 8, 4, 4)), DONE),
    "a kernel of 3x5": (model("pads = [1, 2, 1, 2]", kernel=(2, 8, 3, 5)), DONE),
    "an image of few channels": (model("pads = [2, 2, 2, 2]", kernel=(2, 3, 5, 5), image="1,3,16,16"), DONE),
    "a batch of any size": (model(image="N,8,16,16"), DONE),
    "with its activation": (
        model('pads = [1, 1, 1, 1], activation = "Relu"', conv="com.microsoft.FusedConv"),
        {"com.microsoft::FusedConv": 1, "DepthToSpace": 1},
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, ops = REWRITTEN[name]
    check_rewrites(PASS, before, ops=ops)


def test_an_image_of_any_even_size() -> None:
    doubled = (
        model(image="1,8,H,W")
        .replace("x, w, b", "z, w, b")
        .replace("y = Conv", "t = Concat <axis = 2> (x, x) z = Concat <axis = 3> (t, t) y = Conv")
    )
    check_rewrites(PASS, doubled, ops=DONE | {"Concat": 2})


def test_what_is_not_finite_spreads_to_what_is_beside_it_only() -> None:
    x = np.ones((1, 8, 16, 16), np.float32)
    x[0, 3, 7, 8], x[0, 3, 0, 0] = np.nan, np.inf
    check_rewrites(PASS, model(image="1,8,16,16"), ops=DONE, inputs={"x": x})


def test_before_opset_11_there_is_no_such_depth_to_space() -> None:
    check_keeps(PASS, model(), "a DepthToSpace has no modes", opset=10)
    check_rewrites(PASS, model(), ops=DONE, opset=11)


KEPT = {
    "nine outputs": (NOT_MEASURED, model(kernel=(9, 8, 3, 3))),
    "eight outputs": (
        NOT_MEASURED,
        model("pads = [2, 2, 2, 2]", kernel=(8, 16, 5, 5), image="1,16,16,16"),
    ),
    "three outputs of few channels": (NOT_MEASURED, model(kernel=(3, 8, 3, 3))),
    "single points": (NOT_MEASURED, model("group = 1", kernel=(2, 8, 1, 1))),
    "few inputs": (NOT_MEASURED, model(kernel=(2, 3, 3, 3), image="1,3,16,16")),
    "inputs that fill no block": ("take input channels by four", model(kernel=(2, 18, 3, 3), image="1,18,16,16")),
    "strides": ("groups, strides or dilations", model("pads = [1, 1, 1, 1], strides = [2, 2]", image="1,8,32,32")),
    "dilations": ("groups, strides or dilations", model("pads = [2, 2, 2, 2], dilations = [2, 2]")),
    "groups": ("groups, strides", model("pads = [1, 1, 1, 1], group = 2", kernel=(2, 8, 3, 3), image="1,16,16,16")),
    "padding by name": ("padding is not written out", model('auto_pad = "SAME_UPPER"')),
    "an odd width": ("not known to be even", model(image="1,8,16,17")),
    "an image of any size": ("not known to be even", model(image="1,8,H,W")),
    "a small image": (NOT_MEASURED, model(image="1,8,14,16")),
    "a sum": (
        "it adds another value",
        model(conv="com.microsoft.FusedConv", more=", z", given=", float[2,2,16,18] z"),
    ),
    "half precision": ("single precision only", model(dtype="double")),
}


test_kept = keeps(PASS, KEPT)


NATIVE = replace(all_fusions(), march=March.NATIVE)
EIGHT = model("pads = [2, 2, 2, 2]", kernel=(8, 12, 5, 5), image="1,12,16,16")
THREE = model(kernel=(3, 8, 3, 3))


@pytest.mark.parametrize("before", [EIGHT, THREE])
def test_blocks_of_16_on_request(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_blocks, "channel_block", lambda: 16)
    check_rewrites(PASS, before, ops=DONE, options=NATIVE)
    monkeypatch.setattr(channel_blocks, "channel_block", lambda: 8)
    check_keeps(PASS, before, options=NATIVE)

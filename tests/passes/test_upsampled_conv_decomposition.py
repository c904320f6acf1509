"""A convolution of repeated pixels becomes one convolution for each phase of the result."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "upsampled_conv_decomposition"
NEAREST = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'


def model(
    attributes: str = "pads = [1, 1, 1, 1]",
    *,
    kernel: tuple[int, int, int, int] = (3, 16, 3, 3),
    image: str = "2,16,8,9",
    scales: str = "1, 1, 2, 2",
    resize: str = NEAREST,
    conv: str = "Conv",
    bias: bool = True,
    dtype: str = "float",
    outputs: str = "",
    more: str = "",
) -> str:
    """A convolution of an enlarged image."""
    count = kernel[0] * kernel[1] * kernel[2] * kernel[3]
    numbers = ",".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(count))
    shape = ",".join(map(str, kernel))
    offsets = ",".join(str(place + 0.5) for place in range(kernel[0]))
    return f"""main ({dtype}[{image}] x) => ({dtype}[A,B,C,D] y{outputs})
        <{dtype}[{shape}] w = {{{numbers}}}, {dtype}[{kernel[0]}] b = {{{offsets}}}, float[4] s = {{{scales}}}> {{
            u = Resize <{resize}> (x, , s)
            y = {conv} <{attributes}> (u, w{", b" if bias else ""}) {more}
        }}"""


TWICE = {"Conv": 4, "Concat": 1, "DepthToSpace": 1}
REWRITTEN = {
    "twice": (model(), TWICE),
    "no bias": (model(bias=False).replace(", float[3] b = {0.5,1.5,2.5}", ""), TWICE),
    "uneven padding": (model("pads = [2, 0, 0, 2]"), TWICE),
    "no padding above": (model("pads = [0, 1, 2, 1]"), TWICE),
    "an even kernel": (model("pads = [1, 0, 0, 1]", kernel=(3, 16, 2, 2)), TWICE),
    "a kernel of 5x3": (model("pads = [2, 1, 2, 1]", kernel=(2, 16, 5, 3)), TWICE),
    "three times": (model(scales="1, 1, 3, 3"), TWICE | {"Conv": 9}),
    "four times, a kernel of 7x7": (
        model("pads = [3, 3, 3, 3]", kernel=(1, 16, 7, 7), scales="1, 1, 4, 4"),
        TWICE | {"Conv": 16},
    ),
    "groups": (model("pads = [1, 1, 1, 1], group = 2", kernel=(4, 16, 3, 3), image="1,32,8,8"), TWICE),
    "a batch of any size": (model(image="N,16,8,8"), TWICE),
    "an image of any size": (model(image="1,32,H,W", kernel=(2, 32, 3, 3)), TWICE),
    "with its activation": (
        model('pads = [1, 1, 1, 1], activation = "Relu"', conv="com.microsoft.FusedConv"),
        {"com.microsoft::FusedConv": 4, "Concat": 1, "DepthToSpace": 1},
    ),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewrites(case: str) -> None:
    text, ops = REWRITTEN[case]
    check_rewrites(PASS, text, ops=ops)


def test_an_empty_batch() -> None:
    check_rewrites(PASS, model(image="0,16,8,8"), ops=TWICE)


KEPT = {
    "for single precision only": model(dtype="double"),
    "the larger image is used elsewhere": model(outputs=", float[E,F,G,H] z", more="z = Neg (u)"),
    "it does not repeat rows and columns alike": model(scales="1, 1, 2, 3"),
    "the kernel reads one row or column": model("pads = [0, 1, 0, 1]", kernel=(3, 16, 1, 3)),
    "its result is not as large as its image": model("pads = [0, 0, 0, 0]"),
    "it has strides or dilations": model("pads = [1, 1, 1, 1], strides = [2, 2]"),
    "its padding is not written out": model('auto_pad = "SAME_UPPER"'),
    "its padding is no frame around the image": model("pads = [3, 3, -1, -1]"),
    "a scale is not whole": model(scales="1, 1, 2.5, 2.5"),
    "it repeats images or channels": model(scales="1, 2, 2, 2", kernel=(3, 32, 3, 3)),
    "it does not repeat pixels": model(resize='mode = "linear"'),
    "but with channels 16 or more, side 8 or more": model(image="1,16,7,9"),
    "but with channels 32 or more": model(image="1,16,H,W"),
    "no Resize comes before": "main (float[1,16,8,8] x, float[3,16,3,3] w) => (float[A,B,C,D] y) { y = Conv (x, w) }",
    "it is not a constant": "main (float[1,16,8,8] x, float[3,16,3,3] w) => (float[A,B,C,D] y) <float[4] s = {1,1,2,2}>"
    f" {{ u = Resize <{NEAREST}> (x, , s) y = Conv <pads = [1, 1, 1, 1]> (u, w) }}",
    "a value that disappears may be more than 2^24 times larger": model().replace("{-0.75,", "{1e10,", 1),
    "it serves ONNX Runtime": (model(), {"target": "onnx"}),
}


test_keeps = keeps(PASS, KEPT)


def test_keeps_what_adds_another_value() -> None:
    text = model("pads = [1, 1, 1, 1]", conv="com.microsoft.FusedConv", image="1,16,8,8")
    text = text.replace("(u, w, b)", "(u, w, b, r)").replace(
        "> {", ", float[1,1,1,1] t = {1}> { r = Resize (q, , s)", 1
    )
    text = text.replace("main (float[1,16,8,8] x)", "main (float[1,16,8,8] x, float[1,3,8,8] q)").replace(
        ", float[1,1,1,1] t = {1}", ""
    )
    check_keeps(PASS, text, "it adds another value")

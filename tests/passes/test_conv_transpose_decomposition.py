"""A transposed convolution becomes a convolution with an output for each phase of the result."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortopt.options import Target
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "conv_transpose_decomposition"
OPS = {"Conv": 1, "Reshape": 2, "Transpose": 1, "ConvTranspose": 0}
IMAGES = {"Conv": 1, "DepthToSpace": 1, "ConvTranspose": 0}
CUT, WHOLE = OPS | {"Slice": 1}, OPS | {"Slice": 0}


def model(
    attributes: str = "strides = [4], pads = [2, 2]",
    *,
    weight: tuple[int, ...] = (32, 16, 8),
    signals: str = "2,32,64",
    bias: bool = True,
    kind: str = "float",
) -> str:
    numbers = ",".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(math.prod(weight)))
    offsets = ",".join(str(place + 0.5) for place in range(weight[1]))
    shape = ",".join(map(str, weight))
    result = ",".join("ABCD"[: len(weight)])
    more = f", {kind}[{weight[1]}] b = {{{offsets}}}" if bias else ""
    return f"""main ({kind}[{signals}] x) => ({kind}[{result}] y) <{kind}[{shape}] w = {{{numbers}}}{more}> {{
        y = ConvTranspose <{attributes}> (x, w{", b" if bias else ""})
    }}"""


def image(attributes: str = "strides = [2, 2], pads = [1, 1, 1, 1]", size: str = "1,32,16,17", kernel: int = 4) -> str:
    outputs = 16 if kernel % 2 else 8
    return model(attributes, weight=(32, outputs, kernel, kernel), signals=size)


REWRITTEN = {
    "two strides": (model(), CUT),
    "no bias": (model(bias=False), CUT),
    "all of it": (model("strides = [4]"), WHOLE),
    "cut at the beginning": (model("strides = [4], pads = [3, 0]"), CUT),
    "cut at the end": (model("strides = [4], pads = [0, 5]"), CUT),
    "cut by more than a stride": (model("strides = [2], pads = [3, 4]"), CUT),
    "three strides": (model("strides = [5], pads = [5, 5]", weight=(32, 16, 15)), CUT),
    "attributes that say nothing": (
        model(
            "strides = [2], kernel_shape = [4], dilations = [1], group = 1, output_padding = [0]", weight=(32, 16, 4)
        ),
        WHOLE,
    ),
    "images": (image(), IMAGES | {"Slice": 1}),
    "all of the images": (image("strides = [2, 2]"), IMAGES | {"Slice": 0}),
    "images cut on one side": (image("strides = [2, 2], pads = [0, 2, 1, 0]"), IMAGES | {"Slice": 1}),
    "three strides of images": (image("strides = [3, 3], pads = [1, 2, 2, 3]", kernel=9), IMAGES | {"Slice": 1}),
    "any number of images": (image(size="N,32,16,17"), IMAGES | {"Slice": 1}),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    text, ops = REWRITTEN[name]
    check_rewrites(PASS, text, ops=ops)


@pytest.mark.parametrize("opset", [11, 13, 22])
def test_opsets(opset: int) -> None:
    check_rewrites(PASS, model(weight=(32, 16, 8)), ops=CUT, opset=opset)


@pytest.mark.parametrize(
    ("shape", "signals"), [("N,32,64", (0, 32, 64)), ("N,32,64", (3, 32, 64)), ("2,32,L", (2, 32, 70))]
)
def test_free_sizes(shape: str, signals: tuple[int, int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(signals).astype(np.float32)
    check_rewrites(PASS, model(signals=shape), ops=CUT, inputs={"x": x})


def test_what_is_not_finite_stays_in_its_place() -> None:
    x = np.random.default_rng(0).standard_normal((2, 32, 64)).astype(np.float32)
    x[0, 3, 5], x[1, 0, 63] = np.nan, np.inf
    check_rewrites(PASS, model(), inputs={"x": x})


KEPT = {
    "measured for single precision only": model(kind="double"),
    "it has groups": model("strides = [4], group = 2"),
    "it has dilations": model("strides = [4], dilations = [2]"),
    "its padding is not written out": model('strides = [4], auto_pad = "SAME_UPPER"'),
    "its result's size is given": model("strides = [4], output_shape = [256]"),
    "its result is padded": model("strides = [4], output_padding = [1]"),
    "not two or more whole strides": model("strides = [3]"),
    "its channels fill no blocks": model(weight=(40, 16, 8), signals="2,40,64"),
    "but with axes 1, channels 32 or more, outputs 16": model(weight=(32, 8, 8)),
    "nobody has measured whether Conv of the phases": model(signals="2,32,32"),
    "the size of the images is not fixed": image(size="1,32,16,W"),
    "its strides differ": image("strides = [2, 4]"),
    "outputs 8 or more, length 16 or more, scale 2 to 3": image("strides = [4, 4]", kernel=8),
    "its kernel is no square": model("strides = [2, 2]", weight=(32, 8, 4, 6), signals="1,32,16,16"),
    "it is of no signals and no images": model(weight=(32, 8, 2, 2, 2), signals="1,32,8,8,8"),
    "Reshape cannot be told a dimension of 0": model(signals="N,32,L"),
    "the signals may be empty": model("strides = [4]", signals="2,32,L"),
    "no frame within the kernel": model("strides = [4], pads = [4, 4]"),
    "other runtimes": (None, model(), {"target": Target.ONNX}),
}


test_keeps = keeps(PASS, KEPT)


@pytest.mark.parametrize("text", [model("strides = [8]"), model("strides = [1]")], ids=["one stride", "no stride"])
def test_keeps_kernels_without_overlap_or_stride(text: str) -> None:
    check_keeps(PASS, text, "not two or more whole strides")

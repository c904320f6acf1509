"""Two transposed convolutions that enlarge each pixel by itself become convolutions of points and one DepthToSpace."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "stacked_conv_transpose_conversion"
OPS = {"Conv": 2, "DepthToSpace": 1, "ConvTranspose": 0}
TWO = "strides = [2, 2]"


def numbers(count: int, step: int) -> str:
    return ",".join(str(((step * place + place // 7) % 9 - 4) / 64) for place in range(count))


def model(
    first: str = TWO,
    second: str = TWO,
    *,
    size: str = "1,48,24,25",
    weights: tuple[tuple[int, ...], tuple[int, ...]] = ((48, 48, 2, 2), (48, 1, 2, 2)),
    between: str = "u = Relu (t)",
    biases: tuple[bool, bool] = (True, True),
    kind: str = "float",
    after: str = "",
    more: str = "",
    result: str = "A,B,C,D",
    constants: str = "",
) -> str:
    declared = [
        f"{kind}[{','.join(map(str, shape))}] {name} = {{{numbers(math.prod(shape), step)}}}"
        for shape, name, step in zip(weights, "vw", (5, 7), strict=True)
    ]
    for has, shape, name in zip(biases, weights, "bc", strict=True):
        if has:
            declared.append(f"{kind}[{shape[1]}] {name} = {{{','.join(str(n + 0.5) for n in range(shape[1]))}}}")
    b, c = (f", {name}" if has else "" for has, name in zip(biases, "bc", strict=True))
    return f"""main ({kind}[{size}] x) => ({kind}[{result}] y{more}) <{", ".join(declared)}{constants}> {{
        t = ConvTranspose <{first}> (x, v{b})
        {between}
        y = ConvTranspose <{second}> (u, w{c})
        {after}
    }}"""


REWRITTEN = {
    "an activation between": (model(), OPS | {"Relu": 1}),
    "no bias": (model(biases=(False, False)), OPS),
    "a bias of the first": (model(biases=(True, False)), OPS),
    "a bias of the second": (model(biases=(False, True)), OPS),
    "nothing between": (model(between="").replace("(u, w", "(t, w"), OPS),
    "a slope": (model(between="u = LeakyRelu <alpha = 0.25> (t)"), OPS | {"LeakyRelu": 1}),
    "a hard activation": (model(between="u = HardSwish (t)"), OPS | {"HardSwish": 1}),
    "bounds": (model(between="u = Clip (t, , six)", constants=", float six = {0.5}"), OPS | {"Clip": 1}),
    "something behind": (model(between="u = Relu (t)", after="z = Sigmoid (y)", more=", float[A,B,C,D] z"), OPS),
    "two outputs": (model(weights=((48, 64, 2, 2), (64, 2, 2, 2))), OPS),
    "other channels": (model(weights=((64, 48, 2, 2), (48, 1, 2, 2)), size="2,64,31,19"), OPS),
    "attributes that say nothing": (
        model(
            f"{TWO}, kernel_shape = [2, 2], dilations = [1, 1], group = 1, pads = [0, 0, 0, 0]",
            f'{TWO}, output_padding = [0, 0], auto_pad = "NOTSET"',
        ),
        OPS,
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    text, ops = REWRITTEN[name]
    check_rewrites(PASS, text, ops=ops)


@pytest.mark.parametrize("opset", [11, 13, 22])
def test_opsets(opset: int) -> None:
    check_rewrites(PASS, model(), ops=OPS, opset=opset)


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ("N,48,24,25", (0, 48, 24, 25)),
        ("N,48,24,25", (3, 48, 24, 25)),
        ("1,48,H,W", (1, 48, 5, 3)),
        ("N,48,H,W", (2, 48, 1, 7)),
        ("N,48,H,24", (2, 48, 2, 24)),
    ],
)
def test_free_sizes(shape: str, image: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(image).astype(np.float32)
    check_rewrites(PASS, model(size=shape), ops=OPS, inputs={"x": x})


@pytest.mark.parametrize("outputs", [1, 2])
def test_each_pixel_goes_to_its_place(outputs: int) -> None:
    x = np.zeros((1, 48, 24, 25), np.float32)
    x[0, 3, 7, 11] = 1000
    weights = ((48, 48, 2, 2), (48, outputs, 2, 2))
    check_rewrites(PASS, model(weights=weights, between="u = LeakyRelu <alpha = 0.5> (t)"), ops=OPS, inputs={"x": x})


KEPT = {
    "measured for single precision only": model(kind="double"),
    "it has groups": model(f"{TWO}, group = 2", weights=((48, 24, 2, 2), (48, 1, 2, 2))),
    "it has dilations": model(second=f"{TWO}, dilations = [2, 2]"),
    "its padding is not written out": model(f'{TWO}, auto_pad = "SAME_UPPER"'),
    "its result's size is given": model(second=f"{TWO}, output_shape = [96, 100]"),
    "its result is padded": model(f"{TWO}, output_padding = [1, 1]"),
    "its result is cut": model(second=f"{TWO}, pads = [1, 0, 0, 0]"),
    "its strides differ": model("strides = [2, 1]"),
    "but with channels 48 or more": model(weights=((32, 48, 2, 2), (48, 1, 2, 2)), size="1,32,24,25"),
    "but with channels 48 or more, outputs 1 to 2": model(weights=((48, 48, 2, 2), (48, 3, 2, 2))),
    "outputs 1 to 2, pixels 576 or more": model(size="1,48,24,23"),
    "no ConvTranspose comes before": model(between="r = Relu (t) u = Tanh (r)"),
    "no ConvTranspose or": model(between="u = Elu (t)"),
    "a bound is not a constant": model(between="u = Clip (t, k)").replace("x)", "x, float k)", 1),
    "used elsewhere": model(after="z = Neg (u)", more=", float[A,B,C,D] z"),
    "is not a constant": model(biases=(True, False)).replace("x)", "x, float[1] c)", 1).replace("(u, w)", "(u, w, c)"),
    "rank": model("strides = [2]", "strides = [2]", weights=((48, 48, 2), (48, 1, 2)), size="1,48,900", result="A,B,C"),
    "before modes": (None, model(), {"opset": 10}),
    "other runtimes": (None, model(), {"target": "onnx"}),
}


test_keeps = keeps(PASS, KEPT)


@pytest.mark.parametrize(
    "text",
    [
        model("strides = [1, 1]"),
        model(weights=((48, 48, 3, 3), (48, 1, 2, 2))),
        model("strides = [3, 3]", weights=((48, 48, 3, 3), (48, 1, 2, 2))),
        model(second="strides = [4, 4]", weights=((48, 48, 2, 2), (48, 1, 4, 4))),
        model(weights=((48, 48, 2, 2), (48, 1, 2, 1))),
    ],
    ids=["no strides", "overlap", "strides of 3", "strides of 4", "no square"],
)
def test_keeps_other_kernels(text: str) -> None:
    check_keeps(PASS, text, "it does not make two by two pixels of each")


@pytest.mark.parametrize("channels", [40, 56])
def test_keeps_channels_that_fill_no_blocks(channels: int) -> None:
    text = model(weights=((48, channels, 2, 2), (channels, 1, 2, 2)))
    check_keeps(PASS, text, "its channels fill no blocks")


@pytest.mark.parametrize("name", ["t", "u"])
def test_keeps_what_is_an_output_too(name: str) -> None:
    check_keeps(PASS, model(more=f", float[E,F,G,H] {name}"), "used elsewhere")


def test_keeps_what_another_graph_computes() -> None:
    text = model().replace("float[1,48,24,25] x)", "float[1,48,24,25] x, bool p)")
    head, tail = text.split("y = ConvTranspose")
    branch = "r = ConvTranspose" + tail.replace("}", "").rstrip()
    text = f"""{head} y = If (p) <
        then_branch = then () => (float[E,F,G,H] r) {{ {branch} }},
        else_branch = other () => (float[I,J,K,L] r) {{ r = ConvTranspose <{TWO}> (x, v) }}> }}"""
    check_keeps(PASS, text, "it is computed in another graph")


def test_what_is_not_finite_stays_in_its_place() -> None:
    x = np.random.default_rng(0).standard_normal((1, 48, 24, 25)).astype(np.float32)
    x[0, 3, 7, 11] = np.nan
    check_rewrites(PASS, model(), ops=OPS, inputs={"x": x})


def test_keeps_weights_that_are_computed() -> None:
    text = model().replace("x)", "x, float[48,1,2,2] k)", 1).replace("(u, w, c)", "(u, k, c)")
    check_keeps(PASS, text, "is not a constant")

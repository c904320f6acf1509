"""Convolutions of interpolated images become convolutions of points of the small images, and two products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "interpolated_conv_decomposition"


def decoder(
    *,
    maps: str = "float[1,8,9,10] x, float[1,16,3,2] z",
    sizes: str = "1, 16, 9, 10",
    resize: str = 'mode = "linear"',
    given: str = "z, e, e, s",
    conv: str = "pads = [1, 1, 1, 1]",
    body: str = "c = Concat <axis = 1> (x, r) y = Conv <{conv}> (c, w, b)",
    shape: tuple[int, ...] = (12, 24, 3, 3),
    results: str = "",
    bias: bool = True,
    more: str = "",
) -> str:
    """A decoder's convolution; its weights are drawn."""
    drawn = np.random.default_rng(1)
    numbers = [
        ", ".join(f"{number:.3f}" for number in drawn.standard_normal(size) / 4)
        for size in (math.prod(shape), shape[0])
    ]
    sizes = f"int64[{sizes.count(',') + 1}] s = {{{sizes}}}" if "." not in sizes else f"float[4] s = {{{sizes}}}"
    own = f", float[{shape[0]}] b = {{{numbers[1]}}}" if bias else ""
    return (
        f"main ({maps}) => (float[A,B,C,D] y{results}) <{sizes}{more}, float[0] e = {{}},"
        f" float[{','.join(map(str, shape))}] w = {{{numbers[0]}}}{own}>"
        f" {{ r = Resize <{resize}> ({given}) {body.format(conv=conv)} }}"
    )


NONE = "pads = [0, 0, 0, 0]"
BOTH = {"Conv": 2, "MatMul": 2, "Resize": 0, "Concat": 0, "Add": 1}
ALONE = {"Conv": 1, "MatMul": 2, "Resize": 0, "Add": 1}
POINTS: dict[str, Any] = {"maps": "float[1,8,9,10] x, float[1,16,3,4] z", "shape": (12, 24, 1, 1)}
ONE: dict[str, Any] = {"body": "y = Conv <{conv}> (r, w, b)", "maps": "float[1,16,3,2] z", "shape": (12, 16, 3, 3)}
TRANSFORMATIONS = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")

REWRITTEN = {
    **{
        f"{mode}, {name}": (decoder(resize=f'mode = "{mode}", coordinate_transformation_mode = "{name}"'), BOTH, 17)
        for name in TRANSFORMATIONS
        for mode in ("linear", "cubic")
    },
    "opset 11": (decoder(), BOTH, 11),
    "scales": (decoder(sizes="1.0, 1.0, 3.0, 5.0", given="z, e, s"), BOTH, 17),
    "axes": (decoder(sizes="9, 10", resize='mode = "linear", axes = [2, 3]'), BOTH, 18),
    "the enlarged image first": (decoder(body="c = Concat <axis = -3> (r, x) y = Conv <{conv}> (c, w, b)"), BOTH, 17),
    "no padding": (decoder(conv=NONE), BOTH, 17),
    "padding on one side": (decoder(conv="pads = [2, 0, 1, 3]"), BOTH, 17),
    "strides and dilations": (decoder(conv="pads = [1, 2, 1, 2], strides = [1, 2], dilations = [1, 2]"), BOTH, 17),
    "a kernel of other shape": (decoder(conv="pads = [0, 2, 0, 2]", shape=(12, 24, 2, 5)), BOTH, 17),
    "points": (decoder(**POINTS, conv=NONE), BOTH, 17),
    "alone": (decoder(**ONE), ALONE, 17),
    "alone, no bias": (decoder(**ONE | {"body": "y = Conv <{conv}> (r, w)"}, bias=False), ALONE | {"Add": 0}, 17),
    "a bias that is computed": (
        decoder(**ONE | {"maps": "float[1,16,3,2] z, float[12] d", "body": "y = Conv <{conv}> (r, w, d)"}, bias=False),
        ALONE,
        17,
    ),
    "of one pixel": (decoder(maps="float[1,8,9,10] x, float[1,16,1,1] z"), BOTH, 17),
    "several images": (
        decoder(
            maps="float[2,8,18,20] x, float[2,10,3,2] z, float[2,6,2,3] v",
            sizes="2, 10, 18, 20",
            body='q = Resize <mode = "linear"> (v, e, e, t) c = Concat <axis = 1> (r, x, q)'
            " y = Conv <{conv}> (c, w, b)",
            more=", int64[4] t = {2, 6, 18, 20}",
        ),
        {"Conv": 3, "MatMul": 3, "Resize": 0, "Concat": 1, "Add": 1},
        17,
    ),
    "several that stay": (
        decoder(
            maps="float[1,5,9,10] x, float[1,16,3,2] z, float[1,3,9,10] v",
            body="c = Concat <axis = 1> (x, r, v) y = Conv <{conv}> (c, w, b)",
        ),
        BOTH | {"Concat": 1},
        17,
    ),
    "an activation": (
        decoder(
            body='c = Concat <axis = 1> (x, r) y = com.microsoft.FusedConv <activation = "Relu", {conv}> (c, w, b)'
        ),
        BOTH | {"Relu": 1, "com.microsoft::FusedConv": 0},
        17,
    ),
    "what is joined is used elsewhere": (
        decoder(results=", float[E,F,G,H] c"),
        BOTH | {"Resize": 1, "Concat": 1},
        17,
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, ops, opset = REWRITTEN[name]
    check_rewrites(PASS, before, ops=ops, opset=opset)


ANY_NUMBER = decoder(maps="float[N,8,9,10] x, float[N,16,3,2] z", sizes="1.0, 1.0, 3.0, 5.0", given="z, e, s")


@pytest.mark.parametrize("images", [0, 1, 3])
def test_any_number_of_images(images: int) -> None:
    """ONNX Runtime's MatMul refuses a matrix before no matrices."""
    drawn = np.random.default_rng(2)
    shapes = {"x": (images, 8, 9, 10), "z": (images, 16, 3, 2)}
    inputs = {name: drawn.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    after = {"Conv": 3, "MatMul": 1, "Resize": 0, "Concat": 0, "Add": 1}
    made = check_rewrites(PASS, ANY_NUMBER, ops=after, numbers=images > 0, inputs=inputs)
    session = ort.InferenceSession(ir.to_proto(made).SerializeToString())
    assert session.run(None, inputs)[0].shape == (images, 12, 9, 10)


STAYS = {
    "sizes are not known": (
        "height and width of its result are not fixed",
        decoder(maps="float[1,8,H,W] x, float[1,16,3,W] z", sizes="1.0, 1.0, 3.0, 1.0", given="z, e, s"),
    ),
    "elements are repeated": ("nothing before it is interpolated", decoder(resize='mode = "nearest"')),
    "the result of the interpolation is used elsewhere": (
        "nothing before it is interpolated",
        decoder(results=", float[E,F,G,H] r"),
    ),
    "a little larger": (
        "nothing before it is interpolated",
        decoder(maps="float[1,8,30,30] x, float[1,16,28,28] z", sizes="1, 16, 30, 30"),
    ),
    "points of blocks": (
        "nothing before it is interpolated",
        decoder(**POINTS | {"maps": "float[1,8,9,8] x, float[1,16,3,4] z"}, sizes="1, 16, 9, 8", conv=NONE),
    ),
    "groups": ("it has groups", decoder(conv="group = 2, pads = [1, 1, 1, 1]", shape=(12, 12, 3, 3))),
    "automatic padding": ("its padding is not written out", decoder(conv='auto_pad = "SAME_UPPER"')),
    "another dtype": (
        "single precision",
        decoder().replace("float[", "double[").replace("double[0] e", "float[0] e"),
    ),
    "a residual": (
        "it adds another value",
        decoder(
            maps="float[1,8,9,10] x, float[1,16,3,2] z, float[1,12,9,10] u",
            body="c = Concat <axis = 1> (x, r) y = com.microsoft.FusedConv <{conv}> (c, w, b, u)",
        ),
    ),
    "rows are joined": (
        "no channels are joined",
        decoder(
            maps="float[1,24,9,10] x, float[1,24,3,2] z",
            sizes="1, 24, 9, 10",
            body="c = Concat <axis = 2> (x, r) y = Conv <{conv}> (c, w, b)",
        ),
    ),
}


test_it_stays = keeps(PASS, STAYS, opset=17)


def test_nan_and_infinity_are_not_lost() -> None:
    """They may spread, and are never replaced by a number."""
    z = np.random.default_rng(0).standard_normal((2, 16, 3, 2)).astype(np.float32)
    x = np.zeros((2, 8, 9, 10), np.float32)
    text = decoder(maps="float[2,8,9,10] x, float[2,16,3,2] z", sizes="2, 16, 9, 10")
    for value in (np.nan, np.inf):
        z[1, 3, 1, 0] = value
        check_rewrites(PASS, text, ops=BOTH, inputs={"x": x, "z": z})

"""A projection of points and an enlargement change places where that is less work."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "resize_projection_reordering"
NUMBERS = ", ".join(str(((7 * i) % 11 - 5) / 8) for i in range(8 * 24))


def head(inputs: str, channels: int = 24, constants: str = "") -> str:
    numbers = ", ".join(NUMBERS.split(", ")[: 8 * channels])
    return f"main ({inputs}) => (float[A,8,H,W] y) <float[8,{channels},1,1] w = {{{numbers}}}{constants}>"


BIAS = ", float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}"
TWICE = ", float[4] s = {1, 1, 2, 2}"


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
def test_one_map(mode: str, coordinates: str) -> None:
    attributes = f'<mode = "{mode}", coordinate_transformation_mode = "{coordinates}">'
    start = head("float[N,24,5,6] x", constants=BIAS + TWICE)
    check_rewrites(
        PASS,
        f"{start} {{ r = Resize {attributes} (x, , s) y = Conv (r, w, b) }}",
        after=f"{start} {{ c = Conv (x, w, b) y = Resize {attributes} (c, , s) }}",
    )


def test_several_maps() -> None:
    maps = "float[1,8,8,8] x, float[1,8,4,4] z, float[1,8,2,2] v"
    text = (
        f"{head(maps, constants=BIAS + ', int64[4] s = {1, 8, 8, 8}')}"
        ' { p = Resize <mode = "linear"> (z, , , s) q = Resize <mode = "linear"> (v, , , s)'
        " c = Concat <axis = 1> (x, p, q) y = Conv (c, w, b) }"
    )
    check_rewrites(PASS, text, ops={"Conv": 3, "Resize": 2, "Concat": 0, "Add": 2})


@pytest.mark.parametrize(
    ("activation", "plain"),
    [
        ('"Relu"', "Relu (u)"),
        ('"LeakyRelu", activation_params = [0.5]', "LeakyRelu <alpha = 0.5> (u)"),
        ('"HardSigmoid", activation_params = [0.25, 0.75]', "HardSigmoid <alpha = 0.25, beta = 0.75> (u)"),
        ('"Clip", activation_params = [-1.0, 2.0]', "Clip (u, low, high)"),
    ],
)
def test_an_activation_in_the_convolution(activation: str, plain: str) -> None:
    """It is applied to the sum."""
    form = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> '
    maps = "float[1,16,8,8] x, float[1,8,4,4] z"
    resized = 'Resize <mode = "linear"> (z, , s)'
    numbers = NUMBERS.split(", ")
    parts = [", ".join(numbers[24 * i + at] for i in range(8) for at in range(*ends)) for ends in ((0, 16), (16, 24))]
    weights = f"<float[8,16,1,1] w0 = {{{parts[0]}}}, float[8,8,1,1] w1 = {{{parts[1]}}}{BIAS}{TWICE}"
    bounds = ", float low = {-1}, float high = {2}" if "Clip" in plain else ""
    check_rewrites(
        PASS,
        f"{form}{head(maps, constants=BIAS + TWICE)} {{ r = {resized} c = Concat <axis = 1> (x, r)"
        f" y = com.microsoft.FusedConv <activation = {activation}> (c, w, b) }}",
        after=f"{form}main ({maps}) => (float[A,8,H,W] y) {weights}{bounds}>"
        f' {{ p = Conv (x, w0, b) q = Conv (z, w1) r = Resize <mode = "linear"> (q, , s) u = Add (p, r) y = {plain} }}',
    )


def test_sizes_name_the_channels() -> None:
    """They become those of the result."""
    text = (
        f"{head('float[1,24,4,4] x', constants=', int64[4] s = {1, 24, 8, 8}')}"
        ' { r = Resize <mode = "linear"> (x, , , s) y = Conv (r, w) }'
    )
    check_rewrites(
        PASS,
        text,
        after=f"{head('float[1,24,4,4] x', constants=', int64[4] s = {1, 8, 8, 8}')}"
        ' { c = Conv (x, w) y = Resize <mode = "linear"> (c, , , s) }',
    )


def test_sizes_of_some_axes() -> None:
    text = (
        f"{head('float[1,24,4,4] x', constants=', int64[2] s = {8, 8}')}"
        ' { r = Resize <mode = "linear", axes = [2, 3]> (x, , , s) y = Conv (r, w) }'
    )
    check_rewrites(PASS, text, ops={"Conv": 1, "Resize": 1}, opset=18)


SHAPES = ", int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] number = {24}"


def halves(numbers: str, half: int) -> str:
    """Eight of each sixteen columns of two equal blocks of weights."""
    every = (numbers + ", " + numbers).split(", ")
    return ", ".join(each for row in range(8) for each in every[16 * row + 8 * half : 16 * row + 8 * half + 8])


def test_sizes_of_another_image() -> None:
    """The number of images is not known, and the channels become those of the result."""
    text = (
        f"{head('float[N,24,4,4] x, float[N,24,8,8] z')}"
        ' { s = Shape (z) r = Resize <mode = "linear"> (x, , , s) c = Concat <axis = 1> (z, r) y = Conv (c, v) }'
    ).replace("float[8,24,1,1] w = {", "float[8,48,1,1] v = {" + NUMBERS + ", ")
    check_rewrites(PASS, text, ops={"Conv": 2, "Resize": 1, "Concat": 1, "Slice": 2, "Add": 1})


def test_sizes_that_no_one_knows() -> None:
    """Representative sizes decide whether it is less work."""
    text = (
        f"{head('float[N,3,H,W] i', constants=SHAPES + ', int64[1] one = {1}')}"
        " { p = AveragePool <kernel_shape = [4, 4], strides = [4, 4]> (i)"
        " x = Concat <axis = 1> (p, p, p, p, p, p, p, p)"
        " n = Shape (i) b = Slice (n, zero, one) e = Slice (n, two, four)"
        ' s = Concat <axis = 0> (b, number, e) r = Resize <mode = "linear"> (x, , , s) y = Conv (r, w) }'
    )
    check_rewrites(PASS, text, ops={"Conv": 1, "Resize": 1, "Concat": 3})


def test_computed_sizes_of_as_many_channels() -> None:
    numbers = ", ".join(NUMBERS.split(", ")[:64])
    text = (
        "main (float[N,8,4,4] x, float[N,8,8,8] z) => (float[A,8,H,W] y)"
        f" <float[8,16,1,1] w = {{{numbers}, {numbers}}}>"
        ' { s = Shape (z) r = Resize <mode = "linear"> (x, , , s) c = Concat <axis = 1> (r, z) y = Conv (c, w) }'
    )
    check_rewrites(
        PASS,
        text,
        after="main (float[N,8,4,4] x, float[N,8,8,8] z) => (float[A,8,H,W] y)"
        f" <float[8,8,1,1] v = {{{halves(numbers, 0)}}}, float[8,8,1,1] w = {{{halves(numbers, 1)}}}>"
        ' { s = Shape (z) p = Conv (x, v) r = Resize <mode = "linear"> (p, , , s) q = Conv (z, w) y = Add (r, q) }',
    )


LINEAR = 'r = Resize <mode = "linear"> (x, , s)'


test_it_stays = keeps(
    PASS,
    [
        ("strides", f"{head('float[N,24,5,6] x', constants=TWICE)} {{ {LINEAR} y = Conv <strides = [2, 2]> (r, w) }}"),
        ("padding", f"{head('float[N,24,5,6] x', 24, TWICE)} {{ {LINEAR} y = Conv <pads = [1, 1, 1, 1]> (r, w) }}"),
        (
            "it would be no less work",
            f"{head('float[N,24,5,6] x', constants=', float[4] s = {1, 1, 0.5, 0.5}')} {{ {LINEAR} y = Conv (r, w) }}",
        ),
        (
            "it would be no less work",
            f"{head('float[1,24,H,W] x', constants=', int64[4] s = {1, 24, 8, 8}')}"
            ' { r = Resize <mode = "linear"> (x, , , s) y = Conv (r, w) }',
        ),
        (
            "it is not known how much it enlarges",
            f"{head('float[1,24,4,4] x, float[1,24,H,W] z', constants=SHAPES)}"
            ' { n = Shape (z) a = NonZero (z) b = Shape <start = 1> (a) c = Slice (n, zero, two)'
            ' s = Concat <axis = 0> (c, b, b) r = Resize <mode = "linear"> (x, , , s) y = Conv (r, w) }',
        ),
        ("channels", f"{head('float[N,12,5,6] x', 24, ', float[4] s = {1, 2, 1, 1}')} {{ {LINEAR} y = Conv (r, w) }}"),
        ("nothing is enlarged before", f"{head('float[N,24,5,6] x')} {{ y = Conv (x, w) }}"),
        (
            "tf_crop_and_resize",
            f"{head('float[N,24,5,6] x', constants=TWICE + ', float[8] roi = {0, 0, 0, 0, 1, 1, 1, 1}')}"
            ' { r = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (x, roi, s)'
            " y = Conv (r, w) }",
        ),
    ],
)  # fmt: skip


def test_an_enlarged_map_that_is_used_elsewhere() -> None:
    text = head("float[N,24,5,6] x", constants=TWICE).replace("y)", "y, float[N,24,10,12] r)")
    check_keeps(PASS, f"{text} {{ {LINEAR} y = Conv (r, w) }}", "nothing is enlarged before")

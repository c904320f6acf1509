"""Cubic interpolation by whole numbers becomes a convolution for each phase."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "resize_conv_conversion"
DONE = {"Pad": 1, "Conv": 1, "DepthToSpace": 1, "Resize": 0}


def model(
    more: str = "", *, image: str = "1,2,200,120", scales: str = "1, 1, 2, 2", mode: str = "cubic", before: str = ""
) -> str:
    """A cubic Resize between other ops."""
    return f"""main (float[{image}] i) => (float[A,B,C,D] y) <float[4] s = {{{scales}}}> {{
        {before or "x = Neg (i)"}
        y = Resize <mode = "{mode}"{more}> (x, , s)
    }}"""


def by(transformation: str) -> str:
    return f', coordinate_transformation_mode = "{transformation}"'


ANY = {"image": "1,2,H,W", "before": 'x = Pad <mode = "constant"> (i, p)'}
FILLED = "float[4] s", "int64[8] p = {0, 0, 1, 1, 0, 0, 0, 0}, float[4] s"

REWRITTEN = {
    "twice": (model(), 17),
    "three times": (model(image="N,2,9,8", scales="1, 1, 3, 3"), 17),
    "pytorch_half_pixel": (model(by("pytorch_half_pixel"), image="N,2,9,8", scales="1, 1, 3, 3"), 17),
    "half_pixel_symmetric": (model(by("half_pixel_symmetric")), 19),
    "asymmetric": (model(by("asymmetric"), image="N,2,9,8", scales="1, 1, 3, 3"), 17),
    "another coefficient": (model(", cubic_coeff_a = -0.5"), 17),
    "an image of any size": (model(**ANY).replace(*FILLED), 17),
    "an image of any size, opset 11": (
        model(**ANY).replace(*FILLED).replace("x, , s", "x, e, s").replace("float[4] s", "float[0] e = {}, float[4] s"),
        11,
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, opset = REWRITTEN[name]
    pads = 2 if "any size" in name else 1
    check_rewrites(PASS, before, ops=DONE | {"Pad": pads}, opset=opset)


KERNEL = f"float[2,2,3,3] w = {{{', '.join(['0.5'] * 36)}}}, float[4] s"


def convolved(conv: str, results: str = "") -> str:
    """An image of any size with a convolution beside the Resize."""
    text = model(image="1,2,H,W", before=conv).replace("float[4] s", KERNEL)
    return text.replace("float[A,B,C,D] y", f"float[A,B,C,D] y{results}")


BESIDE = ", float[E,F,G,I] z"


@pytest.mark.parametrize(
    "text",
    [
        convolved("x = Conv <pads = [1, 1, 1, 1]> (i, w)"),
        convolved("x = Neg (i) z = Conv <pads = [1, 1, 1, 1]> (x, w)", BESIDE),
    ],
)
def test_an_image_that_a_convolution_gives_or_reads_is_not_empty(text: str) -> None:
    check_rewrites(PASS, text, ops=DONE | {"Conv": 2})


@pytest.mark.parametrize(
    "text",
    [
        convolved("x = Neg (i) z = Conv <pads = [2, 2, 2, 2]> (x, w)", BESIDE),
        convolved("x = Neg (i) z = Conv (x, w)", BESIDE),
        convolved("x = Neg (i) z = Conv <pads = [1, 1, 1, 1]> (x, w)"),
    ],
)
def test_an_image_that_a_convolution_may_read_empty_stays(text: str) -> None:
    check_keeps(PASS, text, "Pad repeats no edge of nothing")


def test_what_is_not_finite_spreads_to_what_is_beside_it_only() -> None:
    x = np.ones((1, 2, 200, 120), np.float32)
    x[0, 1, 0, 119], x[0, 0, 7, 8] = np.inf, np.nan
    check_rewrites(PASS, model(), ops=DONE, inputs={"i": x})


def test_scales_in_a_row() -> None:
    check_rewrites(PASS, model().replace("float[4] s", "float[1,4] s"), ops=DONE)


KEPT = {
    "linear": ("linear interpolation has a fast kernel", model(mode="linear")),
    "another scale": ("phases are not alike", model(scales="1, 1, 2, 3")),
    "no whole scale": ("phases are not alike", model(scales="1, 1, 2.5, 2.5")),
    "a large scale": ("but with scale 1 to 8", model(scales="1, 1, 9, 9")),
    "corners aligned": ("phases are not alike", model(by("align_corners"))),
    "outside excluded": ("phases are not alike", model(", exclude_outside = 1")),
    "three times, a large image": ("rounded places may show", model(scales="1, 1, 3, 3")),
    "three times, more than 32 rows": ("rounded places may show", model(image="N,2,33,8", scales="1, 1, 3, 3")),
    "three times, any size": (
        "rounded places may show",
        convolved("x = Conv <pads = [1, 1, 1, 1]> (i, w)").replace("1, 1, 2, 2", "1, 1, 3, 3"),
    ),
    "three times, any size that is not 0": (
        "rounded places may show",
        model(scales="1, 1, 3, 3", **ANY).replace(*FILLED),
    ),
    "a small image": ("two products are faster", model(image="1,2,16,16")),
    "an image that may be empty": ("Pad repeats no edge of nothing", model(image="1,2,H,W")),
    "channels of any number": ("the channels are not known", model(image="1,C,200,120")),
}


test_kept = keeps(PASS, KEPT)

"""A convolution that changes nothing brings a linear Resize into ONNX Runtime's blocked layout."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "resize_block_conversion"
HALF = ', coordinate_transformation_mode = "half_pixel"'
WEIGHTS = ", ".join(str(0.125 * (place % 7 - 3)) for place in range(32 * 9))


def model(
    more: str = HALF, *, image: str = "N,32,8,7", scales: str = "1, 1, 2, 2", mode: str = "linear", before: str = ""
) -> str:
    """A Resize between other ops."""
    constants = f"float[4] s = {{{scales}}}, float[32,1,3,3] w = {{{WEIGHTS}}}"
    constants = constants if "w)" in before else constants.partition(", float[32")[0]
    return f"""main (float[{image}] i) => (float[A,B,C,D] y) <{constants}> {{
        {before or "x = Neg (i)"}
        r = Resize <mode = "{mode}"{more}> (x, , s)
        y = Neg (r)
    }}"""


def by(transformation: str) -> str:
    return f', coordinate_transformation_mode = "{transformation}"'


DONE = {"Conv": 1, "Resize": 1}

REWRITTEN = {
    "twice": (model(), 17),
    "opset 11": (
        model().replace("x, , s", "x, e, s").replace("float[4] s", "float[0] e = {}, float[4] s"),
        11,
    ),
    "three and four times": (model(scales="1, 1, 3, 4"), 13),
    "columns only": (model(scales="1, 1, 1, 8"), 19),
    "asymmetric": (model(by("asymmetric")), 18),
    "corners aligned": (model(by("align_corners")), 17),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, opset = REWRITTEN[name]
    check_rewrites(PASS, before, ops=DONE, opset=opset)


def test_sizes_instead_of_scales() -> None:
    text = model(image="1,32,8,7").replace("float[4] s = {1, 1, 2, 2}", "int64[4] s = {1, 32, 16, 14}")
    check_rewrites(PASS, text.replace("x, , s", "x, , , s"), ops=DONE)


def test_one_after_the_other() -> None:
    """Behind the first, the image is in blocks; a ReLU goes on in them."""
    text = model().replace("y = Neg (r)", f'a = Relu (r) y = Resize <mode = "linear"{HALF}> (a, , s)')
    check_rewrites(PASS, text, ops={"Conv": 1, "Resize": 2})


def test_an_image_that_leaves_the_blocks_between() -> None:
    text = model().replace("y = Neg (r)", f'a = Neg (r) y = Resize <mode = "linear"{HALF}> (a, , s)')
    check_rewrites(PASS, text, ops={"Conv": 2, "Resize": 2})


def test_an_image_of_any_size_that_a_convolution_reads() -> None:
    text = model(image="1,32,H,W", before="x = Neg (i) z = Conv <group = 32, pads = [1, 1, 1, 1]> (x, w)")
    check_rewrites(PASS, text.replace("float[A,B,C,D] y", "float[A,B,C,D] y, float[E,F,G,I] z"), ops=DONE | {"Conv": 2})


def test_what_is_not_finite_stays_in_its_place() -> None:
    x = np.ones((2, 32, 8, 7), np.float32)
    x[0, 1, 0, 0], x[0, 2, 7, 6], x[1, 3, 4, 4] = np.inf, np.nan, -np.inf
    check_rewrites(PASS, model(), ops=DONE, inputs={"i": x})


KEPT = {
    "in blocks": ("it is in the blocked layout", model(before="x = Conv <group = 32, pads = [1, 1, 1, 1]> (i, w)")),
    "a fraction": ("no blocked kernel enlarges so", model(scales="1, 1, 2.5, 2")),
    "made smaller": ("no blocked kernel enlarges so", model(scales="1, 1, 0.5, 0.5")),
    "other coordinates": ("no blocked kernel enlarges so", model(by("pytorch_half_pixel"))),
    "as large": ("it enlarges nothing", model(scales="1, 1, 1, 1")),
    "smoothed": ("no blocked kernel enlarges so", model(HALF + ", antialias = 1")),
    "few channels": ("but with channels 32 or more", model(image="N,16,20,20")),
    "part of a block": ("its channels fill no blocks", model(image="N,40,8,7")),
    "channels of any number": ("its channels fill no blocks", model(image="N,C,8,7")),
    "a small image": ("channels 32 or more, image 6272 or more", model(image="N,32,4,4")),
    "any size": ("the image may have no rows or columns", model(image="N,32,H,W")),
}


test_kept = keeps(PASS, KEPT, opset=18)


@pytest.mark.parametrize("mode", ["nearest", "cubic"])
def test_what_is_not_linear_is_none_of_its_business(mode: str) -> None:
    check_keeps(PASS, model(mode=mode))

"""A convolution that changes nothing brings a linear Resize into ONNX Runtime's blocked layout."""

from __future__ import annotations

import numpy as np

from ortopt.testing import check_rewrites

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


DONE = {"Conv": 1, "Resize": 1}


def test_an_image_of_any_size_that_a_convolution_reads() -> None:
    text = model(image="1,32,H,W", before="x = Neg (i) z = Conv <group = 32, pads = [1, 1, 1, 1]> (x, w)")
    check_rewrites(PASS, text.replace("float[A,B,C,D] y", "float[A,B,C,D] y, float[E,F,G,I] z"), ops=DONE | {"Conv": 2})


def test_what_is_not_finite_stays_in_its_place() -> None:
    x = np.ones((2, 32, 8, 7), np.float32)
    x[0, 1, 0, 0], x[0, 2, 7, 6], x[1, 3, 4, 4] = np.inf, np.nan, -np.inf
    check_rewrites(PASS, model(), ops=DONE, inputs={"i": x})

"""Cubic interpolation by whole numbers becomes a convolution for each phase."""

from __future__ import annotations

import numpy as np

from ortopt.testing import check_rewrites

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


def test_what_is_not_finite_spreads_to_what_is_beside_it_only() -> None:
    x = np.ones((1, 2, 200, 120), np.float32)
    x[0, 1, 0, 119], x[0, 0, 7, 8] = np.inf, np.nan
    check_rewrites(PASS, model(), ops=DONE, inputs={"i": x})

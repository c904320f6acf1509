"""Interpolation of images of fixed sizes becomes two products."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "resize_matmul_conversion"
TWO = {"MatMul": 2, "Resize": 0}


def cubic(
    more: str = "",
    *,
    image: str = "2,3,5,6",
    scales: str = "1, 1, 2, 3",
    sizes: str = "",
    mode: str = "cubic",
    dtype: str = "float",
    before: str = "",
    behind: str = "y = Neg (r)",
) -> str:
    """A Resize between other ops."""
    given = "x, , , n" if sizes else "x, , s"
    constants = (
        f"int64[{sizes.count(',') + 1}] n = {{{sizes}}}"
        if sizes
        else f"float[{scales.count(',') + 1}] s = {{{scales}}}"
    )
    return f"""main ({dtype}[{image}] i) => ({dtype}[A,B,C,D] y) <{constants}> {{
        {before or "x = Neg (i)"}
        r = Resize <mode = "{mode}"{more}> ({given})
        {behind}
    }}"""


def by(transformation: str) -> str:
    return f', coordinate_transformation_mode = "{transformation}"'


TRANSFORMATIONS = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
LARGE = {"image": "1,64,8,8", "mode": "linear", "scales": "1, 1, 2, 2"}
REWRITTEN = {
    **{f"cubic, {name}": (cubic(by(name)), TWO, 17) for name in TRANSFORMATIONS},
    **{f"linear, {name}": (cubic(by(name), **LARGE), TWO, 17) for name in TRANSFORMATIONS},
    "cubic, half_pixel_symmetric": (cubic(by("half_pixel_symmetric"), scales="1, 1, 1.7, 2.5"), TWO, 19),
    "linear, half_pixel_symmetric": (cubic(by("half_pixel_symmetric"), **LARGE | {"scales": "1,1,2.3,2.7"}), TWO, 19),
    "outside excluded": (cubic(", exclude_outside = 1"), TWO, 17),
    "another coefficient": (cubic(", cubic_coeff_a = -0.5"), TWO, 17),
    "smaller": (cubic(scales="1, 1, 0.6, 0.5"), TWO, 17),
    "to one element": (cubic(by("pytorch_half_pixel"), sizes="2, 3, 1, 1"), TWO, 17),
    "to one element, corners aligned": (cubic(by("align_corners"), sizes="2, 3, 1, 4"), TWO, 17),
    "from one element": (cubic(image="2,3,1,1", scales="1, 1, 3, 2"), TWO, 17),
    "by sizes": (cubic(sizes="2, 3, 7, 9"), TWO, 17),
    "by sizes of axes": (cubic(", axes = [2, 3]", sizes="7, 9"), TWO, 18),
    "rows only": (cubic(scales="1, 1, 2, 1"), TWO, 17),
    "columns only": (cubic(scales="1, 1, 1, 2"), TWO, 17),
    "three times, a large image": (cubic(image="1,1,200,3", scales="1, 1, 3, 3"), TWO, 17),
    "a batch of any size": (cubic(image="N,3,5,6", scales="1, 1, 2.5, 3"), TWO | {"Transpose": 2}, 17),
    "a batch of any size, three times, more than 32 rows": (
        cubic(image="N,3,33,6", scales="1, 1, 3, 3"),
        TWO | {"Transpose": 2},
        17,
    ),
    "opset 11": (cubic().replace("x, , s", "x, e, s").replace("float[4] s", "float[0] e = {}, float[4] s"), TWO, 11),
}


NAN = {
    "cubic": (cubic(), "2,3,5,6"),
    "cubic, rows only": (cubic(scales="1, 1, 2, 1"), "2,3,5,6"),
    "cubic, columns only": (cubic(scales="1, 1, 1, 2"), "2,3,5,6"),
    "linear, columns only": (cubic(**LARGE | {"scales": "1,1,1,4"}), "1,64,8,8"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, ops, opset = REWRITTEN[name]
    check_rewrites(PASS, before, ops=ops, opset=opset)


@pytest.mark.parametrize("name", NAN)
def test_what_is_not_finite_is_not_lost(name: str) -> None:
    before, shape = NAN[name]
    x = np.ones([int(size) for size in shape.split(",")], np.float32)
    x[0, 1, 2, 3], x[0, 2, 4, 5] = np.inf, np.nan
    check_rewrites(PASS, before, ops=TWO, inputs={"i": x})


KEPT = {
    "nearest": (cubic(mode="nearest"), "does not interpolate", 17),
    "a region": (cubic(by("tf_crop_and_resize")).replace("x, , s", "x, s, s"), "depends on more than sizes", 17),
    "smoothed": (cubic(", antialias = 1", scales="1, 1, 0.5, 0.5"), "it is smoothed before", 18),
    "sizes as bounds": (cubic(', keep_aspect_ratio_policy = "not_larger"', sizes="2, 3, 7, 9"), "only bounds", 18),
    "double precision": (cubic(dtype="double", mode="linear"), "single precision only", 17),
    "channels": (cubic(scales="1, 2, 2, 2", mode="linear"), "batch or channels", 17),
    "an image of any size": (cubic(image="1,3,H,W"), "not fixed", 17),
    "channels of any number": (cubic(image="2,C,5,6"), "there may be no channels", 17),
    "linear, a batch of any size": (cubic(**LARGE | {"image": "N,64,8,8"}), "", 17),
    "linear, a large image": (
        cubic(image="1,3,32,32", scales="1, 1, 4, 4", mode="linear"),
        "but with multiplications",
        17,
    ),
    "linear, few elements": (cubic(mode="linear"), "but with multiplications 0 to 24, elements 16384 or more", 17),
    "cubic by a whole number, a batch of any size": (
        cubic(image="N,3,5,6", scales="1, 1, 2, 2"),
        "a convolution for each phase is faster",
        17,
    ),
    "cubic by a whole number, a large image": (
        cubic(image="1,1,200,200", scales="1, 1, 2, 2"),
        "a convolution for each phase is faster",
        17,
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    before, because, opset = KEPT[name]
    check_keeps(PASS, before, because, opset=opset)


@pytest.mark.parametrize("side", ["before", "behind"])
def test_linear_interpolation_beside_a_convolution_stays(side: str) -> None:
    weight = ", ".join(["0.5"] * 64 * 64)
    conv = {"before": "x = Conv (i, w)"} if side == "before" else {"behind": "y = Conv (r, w)"}
    text = cubic(**LARGE, **conv).replace("float[4] s", f"float[64,64,1,1] w = {{{weight}}}, float[4] s")
    check_keeps(PASS, text, "a convolution beside it")


def test_linear_interpolation_stays_before_a_concat_for_a_convolution() -> None:
    """`resize_projection_reordering` looks for it."""
    weight = ", ".join(["0.5"] * 64 * 64)
    text = cubic(**LARGE, behind="c = Concat <axis = 1> (r) y = Conv (c, w)")
    check_keeps(PASS, text.replace("float[4] s", f"float[64,64,1,1] w = {{{weight}}}, float[4] s"), "a convolution")

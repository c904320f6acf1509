"""Resizing by whole numbers has one spelling; what may read other elements keeps its own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_keeps, check_rewrites, parse
from ortopt.transformers.convolution.nearest_resize_canonicalization import REPEATING
from tests.passes.tables import keeps

PASS = "nearest_resize_canonicalization"
CANONICAL = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
HALF = ("half_pixel", "pytorch_half_pixel")


def graph(modes: tuple[str, str], times: tuple[int, int], opset: int = 17, by: str = "scales") -> str:
    coordinates, nearest = modes
    attributes = f'mode = "nearest", coordinate_transformation_mode = "{coordinates}", nearest_mode = "{nearest}"'
    more = "" if opset >= 13 else "float[0] roi = {}, "
    roi = "" if opset >= 13 else "roi"
    down, right = times
    if by == "scales":
        given = f"<{more}float[4] s = {{1, 1, {down}, {right}}}> {{ y = Resize <{attributes}> (x, {roi}, s) }}"
    else:
        given = (
            f"<{more}float[0] none = {{}}, int64[4] s = {{2, 3, {4 * down}, {5 * right}}}>"
            f" {{ y = Resize <{attributes}> (x, {roi}, none, s) }}"
        )
    return f"main (float[2,3,4,5] x) => (float[A,B,C,D] y) {given}"


@pytest.mark.parametrize("times", [(2, 2), (3, 1), (4, 7)])
@pytest.mark.parametrize("modes", sorted(REPEATING - {("asymmetric", "floor")}))
def test_it_repeats_by_scales(modes: tuple[str, str], times: tuple[int, int]) -> None:
    if modes[0] == "half_pixel_symmetric":
        check_rewrites(PASS, graph(modes, times, 19), graph(("asymmetric", "floor"), times), opset=19)
    else:
        opset = 11 if modes[0].startswith("tf") else 17
        check_rewrites(PASS, graph(modes, times, opset), graph(("asymmetric", "floor"), times, opset), opset=opset)


@pytest.mark.parametrize("modes", [("asymmetric", "floor"), ("half_pixel", "round_prefer_ceil")])
@pytest.mark.parametrize("opset", [11, 13])
def test_it_repeats_by_sizes(modes: tuple[str, str], opset: int) -> None:
    check_rewrites(
        PASS, graph(modes, (2, 3), opset, "sizes"), graph(("asymmetric", "floor"), (2, 3), opset), opset=opset
    )


def test_some_axes_only() -> None:
    check_rewrites(
        PASS,
        'main (float[2,3,4,5] x) => (float[A,B,C,D] y) <float[2] s = {3, 2}> { y = Resize <mode = "nearest", axes = [-1, 2]> (x, , s) }',  # noqa: E501
        graph(("asymmetric", "floor"), (2, 3)),
        opset=18,
    )


def test_whatever_the_dimensions_are() -> None:
    head, body = "main (float[N,C,H,W] x) => (float[A,B,E,F] y) <float[4] s = {1, 1, 2, 2}>", "(x, , s)"
    check_rewrites(
        PASS, f'{head} {{ y = Resize <mode = "nearest"> {body} }}', f"{head} {{ y = Resize <{CANONICAL}> {body} }}"
    )


@pytest.mark.parametrize("length", [1, 2, 1000, 70_001])
@pytest.mark.parametrize("times", [2, 3, 5, 7, 16])
def test_long_axes(length: int, times: int) -> None:
    """The coordinates are computed in single precision."""
    text = f'main (float[1,1,1,{length}] x) => (float[A,B,C,D] y) <float[4] s = {{1, 1, 1, {times}}}> {{ y = Resize <mode = "nearest"> (x, , s) }}'  # noqa: E501
    x = np.arange(length, dtype=np.float32).reshape(1, 1, 1, length)
    check_rewrites(PASS, text, inputs={"x": x})


@pytest.mark.parametrize("modes", [(c, n) for c in HALF for n in ("floor", "ceil")] + [
    ("asymmetric", n) for n in ("ceil", "round_prefer_floor", "round_prefer_ceil")] + [
    ("align_corners", "round_prefer_floor"), ("align_corners", "floor")])  # fmt: skip
def test_other_modes_read_other_elements(modes: tuple[str, str]) -> None:
    check_keeps(PASS, graph(modes, (2, 3)), "may read from other places")


test_it_stays = keeps(
    PASS,
    [
        ("it is written so", graph(("asymmetric", "floor"), (2, 3))),
        ("a scale is not whole", graph(("half_pixel", "round_prefer_floor"), (2, 3)).replace("2, 3}", "2, 2.5}")),
        ("a scale is not whole", graph(("half_pixel", "round_prefer_floor"), (2, 3)).replace("2, 3}", "2, 0.5}")),
        (
            "not known to be a multiple",
            graph(("half_pixel", "round_prefer_floor"), (2, 3), by="sizes").replace("8, 15}", "8, 14}"),
        ),
        (
            "not known to be a multiple",
            graph(("half_pixel", "round_prefer_floor"), (2, 3), by="sizes").replace("float[2,3,4,5]", "float[2,3,H,5]"),
        ),
        ("it interpolates", graph(("half_pixel", "round_prefer_floor"), (2, 3)).replace('"nearest",', '"linear",')),
    ],
)


def test_sizes_that_are_bounds_only() -> None:
    text = 'main (float[2,3,4,5] x) => (float[A,B,C,D] y) <int64[2] s = {8, 10}> { y = Resize <mode = "nearest", axes = [2, 3], keep_aspect_ratio_policy = "not_larger"> (x, , , s) }'  # noqa: E501
    check_keeps(PASS, text, "the sizes are only bounds", opset=18)


def test_integers_too() -> None:
    model = parse(
        'main (uint8[1,1,3,4] x) => (uint8[A,B,C,D] y) <float[4] s = {1, 1, 2, 2}> { y = Resize <mode = "nearest"> (x, , s) }'  # noqa: E501
    )
    result = check_rewrites(PASS, model, ops={"Resize": 1})
    assert isinstance(result, ir.Model)

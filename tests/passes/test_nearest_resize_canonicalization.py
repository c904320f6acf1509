"""Resizing by whole numbers has one spelling; what may read other elements keeps its own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites, parse
from ortopt.transformers.convolution.resizes import REPEATING

PASS = "nearest_resize_canonicalization"


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


@pytest.mark.parametrize("length", [1, 2, 1000, 70_001])
@pytest.mark.parametrize("times", [2, 3, 5, 7, 16])
def test_long_axes(length: int, times: int) -> None:
    """The coordinates are computed in single precision."""
    text = f'main (float[1,1,1,{length}] x) => (float[A,B,C,D] y) <float[4] s = {{1, 1, 1, {times}}}> {{ y = Resize <mode = "nearest"> (x, , s) }}'  # noqa: E501
    x = np.arange(length, dtype=np.float32).reshape(1, 1, 1, length)
    check_rewrites(PASS, text, inputs={"x": x})


def test_integers_too() -> None:
    model = parse(
        'main (uint8[1,1,3,4] x) => (uint8[A,B,C,D] y) <float[4] s = {1, 1, 2, 2}> { y = Resize <mode = "nearest"> (x, , s) }'  # noqa: E501
    )
    result = check_rewrites(PASS, model, ops={"Resize": 1})
    assert isinstance(result, ir.Model)

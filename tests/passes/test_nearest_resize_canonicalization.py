"""Resizing by whole numbers has one spelling; what may read other elements keeps its own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites, parse

PASS = "nearest_resize_canonicalization"


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

"""A window that is larger than the image averages all of it."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse, run

PASS = "average_pool_conversion"
WINDOW = "kernel_shape = [90, 80], strides = [90, 80], ceil_mode = 1"


def pool(attributes: str = WINDOW, x: str = "float[B,3,7,5]") -> str:
    return f"main ({x} x) => (float[] y) {{ a = Abs (x) p = AveragePool <{attributes}> (a) y = Neg (p) }}"


@pytest.mark.parametrize(
    ("attributes", "x"),
    [
        (WINDOW, "float[B,3,7,5]"),
        (f"{WINDOW}, count_include_pad = 1", "float[2,3,7,5]"),
        (f"{WINDOW}, pads = [0, 0, 0, 0]", "float[B,C,7,5]"),
        ("kernel_shape = [8, 5], strides = [2, 1], ceil_mode = 1", "float[2,3,7,5]"),
        ("kernel_shape = [8, 6], strides = [2, 2], ceil_mode = 1, count_include_pad = 1", "float[2,3,7,5]"),
        ("kernel_shape = [9], strides = [9], ceil_mode = 1, count_include_pad = 1", "float[2,3,7]"),
        ("kernel_shape = [9, 9, 9], strides = [9, 9, 9], ceil_mode = 1, count_include_pad = 1", "float[2,3,7,5,2]"),
    ],
)
@pytest.mark.parametrize("opset", [10, 17, 19, 22])
def test_the_whole_image(attributes: str, x: str, opset: int) -> None:
    after = f"main ({x} x) => (float[] y) {{ a = Abs (x) p = GlobalAveragePool (a) y = Neg (p) }}"
    check_rewrites(PASS, pool(attributes, x), after, opset=opset)


def test_no_images() -> None:
    changed = parse(pool())
    assert run(PASS, changed)[0]
    x = np.zeros((0, 3, 7, 5), np.float32)
    shapes = [
        ort.InferenceSession(to_bytes(model), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].shape
        for model in (parse(pool()), changed)
    ]
    assert shapes == [(0, 3, 1, 1)] * 2

"""A window that is larger than the image averages all of it."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from ortopt.serialization.save import to_bytes
from ortopt.testing import parse, run

PASS = "average_pool_conversion"
WINDOW = "kernel_shape = [90, 80], strides = [90, 80], ceil_mode = 1"


def pool(attributes: str = WINDOW, x: str = "float[B,3,7,5]") -> str:
    return f"main ({x} x) => (float[] y) {{ a = Abs (x) p = AveragePool <{attributes}> (a) y = Neg (p) }}"


def test_no_images() -> None:
    changed = parse(pool())
    assert run(PASS, changed)[0]
    x = np.zeros((0, 3, 7, 5), np.float32)
    shapes = [
        ort.InferenceSession(to_bytes(model), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0].shape
        for model in (parse(pool()), changed)
    ]
    assert shapes == [(0, 3, 1, 1)] * 2

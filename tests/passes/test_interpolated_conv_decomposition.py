"""Convolutions of interpolated images become convolutions of points of the small images, and two products."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from tests.passes import example_files
from tests.passes.sessions import passed

PASS = "interpolated_conv_decomposition"


def test_no_images() -> None:
    """ONNX Runtime's MatMul refuses a matrix before no matrices, and runs no Resize of none."""
    made = passed(PASS, example_files.text(PASS, "any number of images / one"))
    inputs = {name: np.zeros(shape, np.float32) for name, shape in {"x": (0, 8, 9, 10), "z": (0, 16, 3, 2)}.items()}
    session = ort.InferenceSession(ir.to_proto(made).SerializeToString())
    assert session.run(None, inputs)[0].shape == (0, 12, 9, 10)

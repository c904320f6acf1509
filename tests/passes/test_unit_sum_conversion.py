"""Units of which ONNX Runtime would make slow kernels are kept apart from their quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortopt import optimize
from ortopt.testing import parse
from tests.passes.quantized_units import Tensor, run, unit
from tests.passes.sessions import loaded

SOFTMAX = unit("t = Softmax (x_x)", Tensor("8,16,16", 0.00392, 0), x=Tensor("8,16,16"))
POOL = unit(
    "t = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x_x)", Tensor("1,2,8,8"), x=Tensor("1,2,8,8")
)
KERNELS = {SOFTMAX: "QLinearSoftmax", POOL: "QLinearAveragePool"}


@pytest.mark.parametrize("text", KERNELS, ids=KERNELS.values())
def test_onnxruntime_leaves_the_result_alone(text: str, tmp_path: Path) -> None:
    """And does what this pass keeps it from: a release that no longer does needs no such pass."""
    original = parse(text, opset=17)
    assert KERNELS[text] in loaded(original, tmp_path)
    result = optimize(original, level=3, verify=False).model
    assert "Sum" in loaded(result, tmp_path)
    assert KERNELS[text] not in loaded(result, tmp_path)
    x = {"x": np.random.default_rng(0).integers(0, 256, original.graph.inputs[0].shape.numpy(), np.uint8)}
    np.testing.assert_array_equal(run(parse(text), x)[0], run(result, x)[0])
    again = optimize(result, level=3, verify=False)
    assert again.summary.before.nodes == again.summary.after.nodes

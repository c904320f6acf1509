"""Kernels of integers that are slower than floats become the floats, with the same integers but for ties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortopt import optimize
from ortopt.testing import parse
from tests.passes.quantized_units import run
from tests.passes.sessions import loaded

SHARE = 1 / 256


def kernel(
    op: str, attributes: str, x: str = "8,64,64", y: str = "8,64,64", scale: float = SHARE, zero: int = 0
) -> str:
    return f"""main (uint8[{x}] x) => (uint8[{y}] y)
        <float x_s = {{0.05}}, uint8 x_z = {{7}}, float y_s = {{{scale}}}, uint8 y_z = {{{zero}}}> {{
        y = com.microsoft.{op} <{attributes}> (x, x_s, x_z, y_s, y_z) }}"""


SOFTMAX = kernel("QLinearSoftmax", "axis = -1, opset = 13")
WINDOW = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"
POOL = kernel("QLinearAveragePool", WINDOW, "1,64,28,28", "1,64,28,28", 0.043, 9)


@pytest.mark.parametrize("text", [SOFTMAX, POOL], ids=["softmax", "pool"])
def test_integers_are_the_kernels_or_their_neighbours(text: str, tmp_path: Path) -> None:
    """Also as ONNX Runtime loads the result, which makes no such kernel again."""
    original = parse(text, opset=17)
    result = optimize(original, level=3, verify=False).model
    assert not any("QLinear" in op for op in loaded(result, tmp_path))
    x = {"x": np.random.default_rng(0).integers(0, 256, original.graph.inputs[0].shape.numpy(), np.uint8)}
    expected, got = (run(model, x)[0].astype(np.int64) for model in (original, result))
    away = np.abs(expected - got)
    assert away.max() <= 1
    assert away.mean() < 0.01

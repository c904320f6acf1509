"""Sums over axes in the middle are products with a row of ones."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt import testing
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse

PASS = "reduce_matmul_conversion"


def model(
    op: str, x: str = "float[N,4,6,400]", y: str = "float[N,1,1,400]", axes: str = "1, 2", keep: str = "keepdims = 1"
) -> str:
    count = axes.count(",") + 1
    return f"main ({x} x) => ({y} y) <int64[{count}] a = {{{axes}}}> {{ y = {op} <{keep}> (x, a) }}"


OPS = {
    "ReduceSum": {"MatMul": 1, "Reshape": 2, "ConstantOfShape": 1},
    "ReduceMean": {"MatMul": 1, "Reshape": 2},
    "ReduceSumSquare": {"Mul": 1, "MatMul": 1, "Reshape": 2},
    "ReduceL2": {"Mul": 1, "MatMul": 1, "Sqrt": 1, "Reshape": 2},
}


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL2"])
@pytest.mark.parametrize(("batch", "length"), [(1, 5), (2, 1), (0, 3), (1, 0)])
def test_signals_of_any_length(op: str, batch: int, length: int) -> None:
    """Columns of two axes are multiplied as they are, however many there are."""
    text = f"main (float[N,64,T] x) => (float[N,1,T] y) <int64[1] a = {{1}}> {{ y = {op} (x, a) }}"
    x = np.random.default_rng(0).standard_normal((batch, 64, length)).astype(np.float32)
    check_rewrites(PASS, text, ops={op: 0, "MatMul": 1, "Reshape": 0}, opset=18, inputs={"x": x})


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("batch", [0, 2])
def test_numbers_that_are_none(op: str, batch: int) -> None:
    """An empty batch, infinities and NaNs give what they gave."""
    x = np.random.default_rng(0).standard_normal((batch, 4, 6, 400)).astype(np.float32)
    if batch:
        x[0, 1, 2, 3], x[0, 0, 0, 4], x[1, 3, 5, 5], x[1, 0, 0, 6], x[1, 0, 1, 6] = (
            np.inf,
            -np.inf,
            np.nan,
            np.inf,
            -np.inf,
        )
    results = []
    for after in (False, True):
        read = parse(model(op), opset=18)
        if after:
            assert testing.run(PASS, read)[0]
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(to_bytes(read), options, ["CPUExecutionProvider"])
        results.append(session.run(None, {"x": x})[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-4)

"""Sums over axes in the middle are products with a row of ones."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt import testing
from ortopt.options import Options, Target
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse

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


@pytest.mark.parametrize("op", OPS)
def test_converts(op: str) -> None:
    check_rewrites(PASS, model(op), ops={op: 0, **OPS[op]}, opset=18)


@pytest.mark.parametrize(
    ("x", "y", "axes", "keep"),
    [
        ("float[N,24,400]", "float[N,400]", "1", "keepdims = 0"),
        ("float[24,400]", "float[1,400]", "-2", "keepdims = 1"),
        ("float[2,M,24,20,20]", "float[2,M,20,20]", "2", "keepdims = 0"),
        ("float[N,4,6,400]", "float[N,400]", "-2, 1", "keepdims = 0"),
    ],
)
def test_other_axes(x: str, y: str, axes: str, keep: str) -> None:
    check_rewrites(PASS, model("ReduceL2", x, y, axes, keep), ops={"MatMul": 1, "ReduceL2": 0}, opset=18)


def test_axes_of_an_attribute() -> None:
    text = "main (float[N,24,400] x) => (float[N,1,400] y) { y = ReduceMean <axes = [1]> (x) }"
    check_rewrites(PASS, text, ops={"MatMul": 1}, opset=17)


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


KEPT = {
    "no axes in the middle": model("ReduceL2", y="float[N,4,1,1]", axes="2, 3"),
    "no axes in the middle ": model("ReduceL2", "float[N,400,4,6]", "float[1,400,1,6]", "0, 2"),
    "a size is not fixed": model("ReduceL2", "float[N,H,6,400]"),
    "a size is not fixed ": model("ReduceMean", "float[N,64,T]", "float[N,T]", "1", "keepdims = 0"),
    "a size is not fixed  ": model("ReduceMean", "float[N,C,T]", "float[N,1,T]", "1"),
    "a size is not fixed   ": model("ReduceMean", "float[N,8,8,T]", "float[N,1,1,T]", "1, 2"),
    "but with length 64 to 65536": model("ReduceMean", "float[N,63,T]", "float[N,1,T]", "1"),
    "axes come before ": model("ReduceMean", "float[2,64,T]", "float[2,1,T]", "1"),
    "elements 8192 or more": model("ReduceL2", "float[N,4,6,40]", "float[N,1,1,40]"),
    "axes come before": model("ReduceSum", "float[2,4,6,400]", "float[2,1,1,400]"),
    "single precision only": model("ReduceL2", "double[N,4,6,400]", "double[N,1,1,400]"),
}


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(PASS, KEPT[because], because.strip(), opset=18)


def test_an_opset_without_sizes_of_some_axes() -> None:
    text = "main (float[N,24,400] x) => (float[N,1,400] y) { y = ReduceMean <axes = [1]> (x) }"
    check_keeps(PASS, text, "no Shape of some axes", opset=13)
    check_rewrites(PASS, text.replace("N", "1"), ops={"MatMul": 1, "ConstantOfShape": 0}, opset=13)


def test_a_sum_of_nothing() -> None:
    """No axes may mean all, or none."""
    text = "main (float[N,24,400] x) => (float[A,B,C] y) { y = ReduceL2 (x) }"
    check_keeps(PASS, text, "no axes in the middle", opset=18)


def test_another_target() -> None:
    check_keeps(PASS, model("ReduceL2"), "--target onnx", opset=18, options=Options(target=Target.ONNX))

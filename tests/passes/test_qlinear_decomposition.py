"""Kernels of integers that are slower than floats become the floats, with the same integers but for ties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortopt import optimize
from ortopt.options import Fusions, Options, Target
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.quantized_units import run
from tests.passes.tables import keeps
from tests.passes.test_bias_sum_conversion import loaded

PASS = "qlinear_decomposition"
DEFAULT = Options()
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


@pytest.mark.parametrize(
    ("text", "op"), [(SOFTMAX, "Softmax <axis = -1>"), (POOL, f"AveragePool <{WINDOW}>")], ids=["softmax", "pool"]
)
def test_floats(text: str, op: str) -> None:
    after = f"a = DequantizeLinear (x, x_s, x_z) b = {op} (a) y = QuantizeLinear (b, y_s, y_z)"
    check_rewrites(PASS, text, after=after, options=DEFAULT, numbers=False)


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


def test_no_zero_points() -> None:
    text = SOFTMAX.replace("x_s, x_z, y_s, y_z", 'x_s, "", y_s').replace(", uint8 x_z = {7}", "")
    text = text.replace(", uint8 y_z = {0}", "")
    check_rewrites(PASS, text, ops={"Softmax": 1, "DequantizeLinear": 1}, options=DEFAULT, numbers=False)


KEPT = {
    "as fast as the floats": kernel("QLinearSoftmax", "axis = -1, opset = 13", "16,16", "16,16"),
    "it flattens what is behind": SOFTMAX.replace("opset = 13", "opset = 12"),
    "of which one is no multiple": SOFTMAX.replace("{0.00390625}", "{0.0035}"),
    "the axis is out of range": SOFTMAX.replace("axis = -1", "axis = 3"),
    "there are no elements": SOFTMAX.replace("8,64,64", "N,64,64"),
    "the kernel overflows": SOFTMAX.replace("8,64,64", "8,64,1"),
    "unsigned integers alone": SOFTMAX.replace("uint8", "int8"),
    "it is not a constant": SOFTMAX.replace("x_z", "z").replace("uint8 z = {7}, ", "")
    .replace("64] x)", "64] x, uint8 z)"),
    "there are several scales": SOFTMAX.replace("float x_s = {0.05}", "float[2] x_s = {0.05, 0.05}"),
    "beyond what kernels can multiply": SOFTMAX.replace("{0.05}", "{1e-30}"),
    "its channels are last": POOL.replace("<kernel", "<channels_last = 1, kernel"),
    "windows beyond the border": POOL.replace("<kernel", "<ceil_mode = 1, kernel"),
    "a mean of nothing": POOL.replace("28,28", "28,N"),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT, options=DEFAULT)


def test_who_asks_for_kernels_gets_them() -> None:
    for choice in (Fusions.ALL, Fusions.NONE):
        check_keeps(PASS, SOFTMAX, "whatever they cost", options=Options(fusions=choice))


def test_other_runtimes() -> None:
    check_keeps(PASS, SOFTMAX, None, target=Target.ONNX, options=Options(target=Target.ONNX))

"""A linear layer between two Transposes is a convolution."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse, run

PASS = "transposed_matmul_conversion"
W = "float[2,3] w = {1, -2, 0.5, 3, 1, -1}"
BIAS = "float[3] b = {1, -2, 0.25}"
LAYER = "m = MatMul (t, w) a = Add (m, b)"


def heads(
    x: str = "float[B,2,3,4]",
    layer: str = LAYER,
    constants: str = f"{W}, {BIAS}",
    first: str = "0, 2, 3, 1",
    last: str = "0, 3, 1, 2",
    more: str = "",
) -> str:
    """Two heads that become three, at 3x4 positions."""
    return f"""main ({x} x, float[2,3] u) => (float[] y{more and ", float[] z"}) <{constants}> {{
        t = Transpose <perm = [{first}]> (x) {layer} y = Transpose <perm = [{last}]> (a) {more} }}"""


def tokens(x: str = "float[B,2,L]", layer: str = LAYER, constants: str = f"{W}, {BIAS}") -> str:
    """Two tokens of L channels that become three."""
    return heads(x, layer, constants, "0, 2, 1", "0, 2, 1")


@pytest.mark.parametrize("text", [heads(), tokens("float[B,2,5]")])
def test_an_empty_batch(text: str) -> None:
    after = parse(text)
    assert run(PASS, after)[0]
    x = np.zeros((0, 2, *[size for size in after.graph.inputs[0].shape or () if isinstance(size, int)][1:]), np.float32)
    feeds = {"x": x, "u": np.zeros((2, 3), np.float32)}
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    shapes = [
        ort.InferenceSession(to_bytes(model), plain, providers=["CPUExecutionProvider"]).run(["y"], feeds)[0].shape
        for model in (parse(text), after)
    ]
    assert shapes[0] == shapes[1]
    assert 0 in shapes[0]


def test_a_second_run_changes_nothing() -> None:
    model = parse(heads(more="z = Softmax (y)"))
    result = optimize(model, level=3, verify=False)
    assert figures(result.model).ops["Conv"] == 1
    assert to_bytes(optimize(result.model, level=3, verify=False).model) == to_bytes(result.model)

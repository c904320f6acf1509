"""A linear layer between two Transposes is a convolution."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse, run
from tests.passes.tables import keeps

PASS = "transposed_matmul_conversion"
W = "float[2,3] w = {1, -2, 0.5, 3, 1, -1}"
WEIGHT = "float[3,2,1] w = {1, 3, -2, 1, 0.5, -1}"
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


LAYERS = {
    "a bias": LAYER,
    "a bias first": "m = MatMul (t, w) a = Add (b, m)",
    "a sum": "m = MatMul (t, w) a = Sum (m, b)",
}


@pytest.mark.parametrize("name", LAYERS)
def test_heads(name: str) -> None:
    after = f"""main (float[B,2,3,4] x, float[2,3] u) => (float[] y)
        <{WEIGHT}, {BIAS}, int64[3] s = {{0, 2, 12}}, int64[4] e = {{0, 3, 3, 4}}> {{
        r = Reshape (x, s) c = Conv (r, w, b) y = Reshape (c, e) }}"""
    check_rewrites(PASS, heads(layer=LAYERS[name]), after)


@pytest.mark.parametrize("x", ["float[B,2,5]", "float[2,2,1]"])
def test_tokens(x: str) -> None:
    after = f"main ({x} x, float[2,3] u) => (float[] y) <{WEIGHT}, {BIAS}> {{ y = Conv (x, w, b) }}"
    check_rewrites(PASS, tokens(x), after)


def test_no_bias() -> None:
    after = f"main (float[B,2,5] x, float[2,3] u) => (float[] y) <{WEIGHT}> {{ y = Conv (x, w) }}"
    check_rewrites(PASS, tokens("float[B,2,5]", "a = MatMul (t, w)", W), after)


def test_five_axes() -> None:
    text = heads("float[2,2,3,1,4]", first="0, 2, 3, 4, 1", last="0, 4, 1, 2, 3")
    check_rewrites(PASS, text, ops={"Conv": 1, "Reshape": 2, "Transpose": 0})


KEPT = {
    "a Transpose moves something else": heads("float[4,2,3,4]", first="3, 2, 0, 1"),
    "moves something else than the channels": heads(last="0, 3, 2, 1"),
    "what is transposed back is used elsewhere": heads(more="z = Neg (a)"),
    "the product is used elsewhere": heads(more="z = Neg (m)"),
    "the transposed value is used elsewhere": heads(more="z = Neg (t)"),
    "the matrix is no constant": heads(layer="m = MatMul (t, u) a = Add (m, b)"),
    "what is added is no constant": heads(layer="m = MatMul (t, w) n = Neg (b) k = Identity (u) a = Add (m, k)",
        x="float[2,2,2,2]"),
    "the bias is not one number": heads(constants=f"{W}, float b = {{2}}"),
    "one number for each column": heads(constants=f"{W}, float[4,1] b = {{1, 2, 3, 4}}"),
    "no MatMul": heads(layer="m = Sigmoid (t) a = Neg (m)"),
    "a size is not fixed": heads("float[B,2,H,4]"),
    "there may be no position": tokens(),
    "there may be no": tokens("float[B,2,0]"),
    "there are no positions": heads("float[2,2]", first="0, 1", last="0, 1"),
    "single precision only": heads("double[B,2,3,4]").replace("float", "double"),
    "it is no sum of two": heads(layer="m = MatMul (t, w) a = Sum (m, b, b)"),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


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


def test_numbers_that_are_not_finite() -> None:
    """A NaN or an infinity stays at its position."""
    x = np.ones((1, 2, 3, 4), np.float32)
    x[0, 0, 1, 1], x[0, 1, 2, 3] = np.nan, np.inf
    check_rewrites(PASS, heads(), ops={"Conv": 1}, inputs={"x": x, "u": np.zeros((2, 3), np.float32)})


def test_a_second_run_changes_nothing() -> None:
    model = parse(heads(more="z = Softmax (y)"))
    result = optimize(model, level=3, verify=False)
    assert figures(result.model).ops["Conv"] == 1
    assert to_bytes(optimize(result.model, level=3, verify=False).model) == to_bytes(result.model)

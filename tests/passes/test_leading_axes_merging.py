"""Blocks of linear layers and of what treats each row by itself work on two axes, and their biases are Gemms'."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from ortopt.transformers.lowering.onnxruntime_cpu import leading_axes_merging
from tests.passes.sessions import Compared

PASS = "leading_axes_merging"
W = "float[4,4] w = {1, 2, 0, 1, 0.5, 0, 1, 1, 0, 1, 1, 0, 2, 0, 0, 1}, float[4] b = {1, -2, 3, 0.5}"
V = "float[4,8] v = {1, 0, 2, 0, 1, 0, 1, 0, 1, 1, 0, 2, 0, 1, 0, 1, 0, 1, 0, 0, 1, 2, 1, 0, 1, 0, 1, 0, 2, 0, 0, 1}"
BIASES = f"{W}, {V}, float[8] e = {{1, 2, 3, 4, 5, 6, 7, 8}}"


def model(nodes: str, x: str = "float[N,3,4]", y: str = "float[N,3,8]", constants: str = BIASES) -> str:
    return f"main ({x} x) => ({y} y) <{constants}> {{ {nodes} }}"


GEMMS = """two = Constant<value_ints = [-1, 4]> () f = Reshape (x, two) g = Gemm (f, w, b) s = Shape (x)
    u = Reshape <allowzero = 1> (g, s) r = Relu (u) h = Reshape (r, two) y = Gemm (h, w, b)"""


def test_reshapes_around_what_stands_between_gemms() -> None:
    text = model(GEMMS, "float[N,S,4]", "float[M,4]", W)
    after = check_rewrites(PASS, text, ops={"Reshape": 5, "Relu": 1, "MatMul": 0}, opset=20)
    (relu,) = (node for node in after.graph if node.op_type == "Relu")
    assert len(relu.outputs[0].shape or ()) == 2  # the Reshapes around it undo each other


BLOCK = """l = LayerNormalization <axis = -1> (x, b, b) m = MatMul (l, w) a = Add (m, b) r = Gelu (a) n = MatMul (r, w)
    c = Add (n, b) s = Add (c, x) k = LayerNormalization <axis = 2> (s, b) o = MatMul (k, w) q = Add (o, b)
    g = Mul (q, q) t = Sub (g, b) y = Add (t, k)"""


@pytest.mark.parametrize("most", (4, 5, 6, 7))
def test_a_block_in_parts(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has become of a part is read by the next one, also where a product and its bias are in two parts."""
    monkeypatch.setattr(leading_axes_merging, "MAX_NODES", most)
    check_rewrites(PASS, model(BLOCK, y="float[N,3,4]", constants=W), opset=20)


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_no_rows(batch: int) -> None:
    """An empty batch gives an empty result, of the same shape."""
    numbers = {"x": np.ones((batch, 0 if batch == 2 else 3, 4), np.float32)}
    text = model(BLOCK, "float[N,S,4]", "float[N,S,4]", W)
    before, after = Compared(PASS, text, opset=20).results(numbers)
    np.testing.assert_allclose(after, before, rtol=1e-5)

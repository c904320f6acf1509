"""x · min(max(x + 3, 0), 6) / 6 becomes HardSwish(x)."""

import re

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import parse, run

PASS = "hard_swish_fusion"
HEAD = "main (float[N,3,8,8] x) => (float[N,3,8,8] y)"
NUMBERS = {
    "three": "float three = {3.0}",
    "zero": "float zero = {0.0}",
    "six": "float six = {6.0}",
    "five": "float five = {5.0}",
    "sixth": "float sixth = {0.16666667}",
    "k": "float k = {1.5}",
    "large": "float large = {1000.0}",
    "each": "float[3,1,1] each = {1.0, 2.0, 3.0}",
}
GATE = "a = Add (x, three) c = Clip (a, zero, six)"


def model(nodes: str, head: str = HEAD, **numbers: str) -> str:
    """A graph of some nodes, with the constants that they use."""
    used = [numbers.get(name, text) for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} {'<' + ', '.join(used) + '>' if used else ''} {{ {nodes} }}"


def test_numbers_at_the_edges() -> None:
    """NaN, infinities, both ends of the slope, a zero with its sign."""
    before = parse(model(f"{GATE} m = Mul (x, c) y = Div (m, six)", "main (float[N] x) => (float[N] y)"))
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0, -3.0, 1e-40, -2.999, 1e30, -1e30], np.float32)
    after, numbers = outputs(before, x)
    assert [node.op_type for node in after.graph] == ["HardSwish"]
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.signbit(numbers[1][3:]), np.signbit(numbers[0][3:]))


def outputs(model: ir.Model, x: np.ndarray) -> tuple[ir.Model, list[np.ndarray]]:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    before = to_bytes(model)
    run(PASS, model)
    sessions = [
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        for content in (before, to_bytes(model))
    ]
    return model, [session.run(None, {"x": x})[0] for session in sessions]

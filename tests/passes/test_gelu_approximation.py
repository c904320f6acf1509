"""Gelu by the error function becomes Gelu by a hyperbolic tangent, on request."""

import numpy as np
import onnxruntime
import pytest

from ortopt import registry
from ortopt.options import Options
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "gelu_approximation"
HEAD = "main (float[N,8] x) => (float[N,8] y)"


def test_the_standard_op() -> None:
    text = f"{HEAD} {{ y = Gelu (x) }}"
    check_rewrites(PASS, text, 'y = Gelu <approximate = "tanh"> (x)', opset=20, numbers=False)
    check_rewrites(
        PASS, text.replace("Gelu (", 'Gelu <approximate = "none"> ('), opset=20, numbers=False, target="onnx"
    )


def test_onnxruntime_ops() -> None:
    check_rewrites(PASS, f"{HEAD} {{ y = com.microsoft.Gelu (x) }}", "y = com.microsoft.FastGelu (x)", numbers=False)


def test_with_a_bias() -> None:
    text = "main (float[N,8] x, float[8] b) => (float[N,8] y) { y = com.microsoft.BiasGelu (x, b) }"
    check_rewrites(PASS, text, "y = com.microsoft.FastGelu (x, b)", numbers=False)


@pytest.mark.parametrize("op", ["Gelu", "com.microsoft.Gelu"])
def test_how_far_the_numbers_are(op: str) -> None:
    model = parse(f"main (float[N] x) => (float[N] y) {{ y = {op} (x) }}", 20)
    before = to_bytes(model)
    run(PASS, model)
    x = np.append(np.linspace(-10, 10, 4001), (np.nan, np.inf)).astype(np.float32)
    a, b = (
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for content in (before, to_bytes(model))
    )
    np.testing.assert_allclose(b, a, atol=5e-4, rtol=0)


def test_only_on_request() -> None:
    kind = registry.installed().find(PASS)
    assert PASS not in {one.transformer.name for one in registry.select(Options())}
    assert not kind.enabled


def test_keeps() -> None:
    check_keeps(PASS, f'{HEAD} {{ y = Gelu <approximate = "tanh"> (x) }}', "it is approximate already", opset=20)

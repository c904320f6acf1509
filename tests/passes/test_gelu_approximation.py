"""Gelu by the error function becomes Gelu by a hyperbolic tangent, on request."""

import numpy as np
import onnxruntime
import pytest

from ortopt import registry
from ortopt.options import Options
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse, run

PASS = "gelu_approximation"


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

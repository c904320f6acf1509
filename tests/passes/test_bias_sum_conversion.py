"""A bias before a Gelu is written so that ONNX Runtime does not join the two."""

from __future__ import annotations

from pathlib import Path

from ortopt import optimize
from ortopt.testing import parse
from tests.passes.sessions import loaded

TEXT = "main (float[B,S,4] x) => (float[B,S,4] y) <float[4] b = {1, 2, 3, 4}> { t = Add (x, b) y = Gelu (t) }"


def test_onnxruntime_leaves_the_result_alone(tmp_path: Path) -> None:
    """And does what this pass keeps it from: a release that no longer does needs no such pass."""
    original = parse(TEXT, opset=20)
    assert loaded(original, tmp_path) == ["BiasGelu"]
    assert loaded(optimize(original, level=3, verify=False).model, tmp_path) == ["Sum", "Gelu"]

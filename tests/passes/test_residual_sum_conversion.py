"""A residual Add before a normalization is written so that ONNX Runtime does not join the two."""

from __future__ import annotations

from pathlib import Path

from ortopt import optimize
from ortopt.testing import parse
from tests.passes.sessions import loaded

TEXT = """main (float[B,S,8] x, float[B,S,8] skip, float[8] scale, float[8] bias) => (float[B,S,8] y) {
    t = Add (x, skip) y = LayerNormalization (t, scale, bias) }"""


def test_onnxruntime_leaves_the_result_alone(tmp_path: Path) -> None:
    """And does what this pass keeps it from: a release that no longer does needs no such pass."""
    original = parse(TEXT)
    assert loaded(original, tmp_path) == ["SkipLayerNormalization"]
    assert loaded(optimize(original, level=3, verify=False).model, tmp_path) == ["Sum", "LayerNormalization"]

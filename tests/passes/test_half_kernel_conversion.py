"""What the CPU computes in floats before and behind, it also computes in floats in between."""

from __future__ import annotations

from pathlib import Path

from ortopt import optimize
from ortopt.testing import parse
from tests.passes import example_files
from tests.passes.sessions import loaded

PASS = "half_kernel_conversion"


def test_onnxruntime_makes_the_clip_a_part_of_the_convolution(tmp_path: Path) -> None:
    """A release that does so for halves, too, needs no such rewrite."""
    original = parse(example_files.text(PASS, "clip"), opset=13)
    assert "Clip" in loaded(original, tmp_path)
    assert "Clip" not in loaded(optimize(original, level=3, verify=False).model, tmp_path)


def test_what_onnxruntime_makes_of_it(tmp_path: Path) -> None:
    """It spells a Gelu of halves out, and drops the Casts between what it computes in floats."""
    text = "main (float16[B,S,8] x) => (float16[B,S,8] y) { a = Sqrt (x) b = Gelu (a) y = Sqrt (b) }"
    original = parse(text, opset=20)
    assert "Gelu" not in loaded(original, tmp_path)
    result = optimize(original, level=3, verify=False).model
    assert loaded(result, tmp_path) == ["Cast", "Sqrt", "Gelu", "Sqrt", "Cast"]

"""A linear layer between two Transposes is a convolution."""

from __future__ import annotations

from tests.passes import example_files
from tests.passes.sessions import check_second_run


def test_a_second_run_changes_nothing() -> None:
    text = example_files.text("transposed_matmul_conversion", "heads / a bias")
    text = text.replace("float[] y)", "float[] y, float[] z)").replace("(a) }", "(a) z = Softmax (y) }")
    check_second_run(text, {"Conv": 1, "Reshape": 2, "Softmax": 1})

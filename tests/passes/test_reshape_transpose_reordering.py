"""Rows become an image, and an image becomes rows, by a Transpose that ONNX Runtime joins with its reordering."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes import example_files
from tests.passes.sessions import check_second_run, loaded, passed

PASS = "reshape_transpose_reordering"
BOTH = example_files.text(PASS, "both ways")


def test_onnxruntime_reorders_without_a_transpose(tmp_path: Path) -> None:
    """Both Transposes become part of the reorderings when the result is loaded."""
    ops = loaded(passed(PASS, BOTH), tmp_path)
    if "ReorderInput" not in ops:
        pytest.skip("this processor has no blocked kernels")
    assert sorted(ops) == ["Abs", "Conv", "Neg", "ReorderInput", "ReorderOutput", "Reshape", "Reshape"]


def test_a_second_run_changes_nothing() -> None:
    check_second_run(BOTH, {"Abs": 1, "Conv": 1, "Neg": 1, "Reshape": 2, "Transpose": 2})

"""Constants that scale and shift an image between convolutions are a normalization, which stays in blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes import example_files
from tests.passes.sessions import loaded, passed

PASS = "channel_affine_conversion"


def test_what_onnxruntime_makes_of_it(tmp_path: Path) -> None:
    """The image stays in blocks from the first convolution to the last."""
    ops = loaded(passed(PASS, example_files.text(PASS, "a normalization / product and sum"), opset=18), tmp_path)
    if "ReorderInput" not in ops:
        pytest.skip("this processor has no blocked layout")
    assert sorted(ops) == ["Conv", "Conv", "Conv", "ReorderInput", "ReorderOutput"]

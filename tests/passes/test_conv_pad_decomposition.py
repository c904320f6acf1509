"""Columns of zeros are written beside an image before a wide kernel reads it."""

from __future__ import annotations

from pathlib import Path

from tests.passes import example_files
from tests.passes.sessions import LEVELS, loaded, passed

PASS = "conv_pad_decomposition"
ZEROS = "zeros beside an image"


def test_rows_of_zeros_stay_with_the_convolution() -> None:
    after = passed(PASS, example_files.text(PASS, f"{ZEROS} / an image keeps its rows of zeros"))
    (conv,) = (node for node in after.graph if node.op_type == "Conv")
    assert list(conv.attributes["pads"].as_ints()) == [1, 0, 1, 0]


def test_onnxruntime_does_not_take_it_back(tmp_path: Path) -> None:
    after = passed(PASS, example_files.text(PASS, f"{ZEROS} / a signal"))
    assert "Pad" in loaded(after, tmp_path, LEVELS.ORT_ENABLE_EXTENDED)

"""A mean over height and width is a pooling between convolutions, where the layout is blocked."""

from __future__ import annotations

import pytest

from tests.passes import example_files
from tests.passes.sessions import passed

PASS = "spatial_mean_conversion"


@pytest.mark.parametrize(("axis", "window"), [("2", [6, 1]), ("3", [1, 5])])
def test_the_window_of_one_axis(axis: str, window: list[int]) -> None:
    after = passed(PASS, example_files.text(PASS, f"one axis / {axis}"))
    (pooled,) = (node for node in after.graph if node.op_type == "AveragePool")
    assert list(pooled.attributes["kernel_shape"].as_ints()) == window

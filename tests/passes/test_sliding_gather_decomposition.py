"""A Gather by a range plus a column of offsets is a few Slices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes import example_files
from tests.passes.sessions import Compared

PASS = "sliding_gather_decomposition"
TITLES = [example.title for example in example_files.read(PASS) if example.group == "rewritten"]


@pytest.mark.parametrize("title", TITLES)
def test_same_bits_at_every_length(title: str) -> None:
    compared = Compared(PASS, example_files.text(PASS, title))
    for batch, length in ((0, 3), (2, 0), (1, 1), (1, 2), (3, 7), (2, 32)):
        x = np.random.default_rng(length).standard_normal((batch, 2, length)).astype(np.float32)
        np.testing.assert_array_equal(*compared.results({"x": x}))

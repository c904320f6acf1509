"""A bias by relative position is computed for each difference once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes import example_files
from tests.passes.sessions import Compared

PASS = "relative_position_conversion"


@pytest.mark.parametrize("along", ["column", "row"])
def test_same_bits_at_every_size(along: str) -> None:
    title = f"each difference once / differences that grow with the {along}"
    compared = Compared(PASS, example_files.text(PASS, title))
    for size in (0, 1, 2, 3, 8, 15, 16, 17, 33, 130):
        expected, got = compared.results({"x": np.zeros(size, np.float32)})
        assert expected.shape == (4, size, size)
        np.testing.assert_array_equal(got, expected)

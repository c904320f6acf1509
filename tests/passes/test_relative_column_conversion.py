"""Products of a table are computed for the distances that occur, not for all that it knows."""

import numpy as np
import pytest

from tests.passes import example_files
from tests.passes.sessions import Compared

PASS = "relative_column_conversion"
REWRITTEN = [example for example in example_files.read(PASS) if example.group == "rewritten"]


def check_same(text: str, name: str, shapes: list[tuple[int, ...]]) -> None:
    """The same numbers before and after, for inputs of some shapes."""
    compared = Compared(PASS, text)
    for shape in shapes:
        numbers = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        expected, got = compared.results({name: numbers})
        assert expected.shape == got.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("example", REWRITTEN, ids=[example.title for example in REWRITTEN])
def test_same_at_every_size(example: example_files.Example) -> None:
    """Also where there are more positions than the table knows distances, and where there are none."""
    check_same(example.model, "q", [(2, size, 3) for size in (0, 1, 2, 3, 8, 17, 240, 500)])


def test_same_in_batches() -> None:
    text = example_files.text(PASS, "rewritten in batches")
    check_same(text, "x", [(1, 2, 1, 3), (3, 2, 5, 3), (2, 2, 40, 3)])

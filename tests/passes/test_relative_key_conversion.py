"""Keys by relative position are multiplied once for each distance."""

import numpy as np
import pytest

from tests.passes import example_files
from tests.passes.sessions import Compared

PASS = "relative_key_conversion"
REWRITTEN = [example for example in example_files.read(PASS) if example.group == "rewritten"]


@pytest.mark.parametrize("example", REWRITTEN, ids=[example.title for example in REWRITTEN])
def test_same_at_every_size(example: example_files.Example) -> None:
    """But for 0: there ONNX Runtime's Einsum ends the process."""
    compared = Compared(PASS, example.model)
    for size in (1, 2, 3, 5, 8, 17):
        numbers = np.random.default_rng(size).standard_normal((3, 2, size, 4)).astype(np.float32)
        expected, got = compared.results({"q": numbers})
        assert expected.shape == got.shape == (3, 2, size, size)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

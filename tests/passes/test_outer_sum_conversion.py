"""The sum of a short column and a short row, for each query, is a product with ones."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.sessions import Compared

TEXT = """main (float[N,6,3] x, float[N,6,3] z, float[3,14] v, float[3,13] w) => (float[N,6,14,13] y)
    <int64[1] m = {-1}, int64[1] n = {-2}> {
    a = MatMul (x, v) b = MatMul (z, w) c = Unsqueeze (a, m) r = Unsqueeze (b, n) y = Add (c, r) }"""


@pytest.mark.parametrize("seed", range(3))
def test_finite_numbers_stay_to_the_bit(seed: int) -> None:
    """One summand is a number times one, and all others but one are zeros."""
    rng = np.random.default_rng(seed)
    numbers = {
        name: (rng.standard_normal(shape) * 10.0 ** rng.integers(-20, 18, shape)).astype(np.float32)
        for name, shape in {"x": (7, 6, 3), "z": (7, 6, 3), "v": (3, 14), "w": (3, 13)}.items()
    }
    np.testing.assert_array_equal(*Compared("outer_sum_conversion", TEXT).results(numbers))

"""x · min(max(x + 3, 0), 6) / 6 becomes HardSwish(x)."""

import numpy as np

from tests.passes.sessions import Compared

TEXT = """main (float[N] x) => (float[N] y) <float three = {3.0}, float zero = {0.0}, float six = {6.0}> {
    a = Add (x, three) c = Clip (a, zero, six) m = Mul (x, c) y = Div (m, six) }"""


def test_numbers_at_the_edges() -> None:
    """NaN, infinities, both ends of the slope, a zero with its sign."""
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0, -3.0, 1e-40, -2.999, 1e30, -1e30], np.float32)
    expected, got = Compared("hard_swish_fusion", TEXT).results({"x": x})
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.signbit(got[3:]), np.signbit(expected[3:]))

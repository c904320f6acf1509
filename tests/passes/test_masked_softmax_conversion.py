"""Masked scores are held at 81 below their largest, so that no exponential is denormal."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "masked_softmax_conversion"
HEAD = "main (float[B,4,4] x, float[B,4,2] v) => (float[B,4,2] y)"
MASK = "float[4,4] m = {0, 0, -100, -100, 0, 0, 0, -100, 0, 0, 0, 0, -100, 0, 0, 0}"


def text(softmax: str = "p = Softmax (t)", *, head: str = HEAD, mask: str = MASK) -> str:
    return f"{head} <{mask}> {{ t = Add (x, m) {softmax} y = MatMul (p, v) }}"


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, -3e38, -200.0])
def test_rows_that_hold_anything(number: float) -> None:
    """Wholly, in one place, and everywhere but in one place."""
    x = np.zeros((3, 4, 4), np.float32)
    x[0, 0], x[1, :, 2], x[2, :, 1:] = number, number, number
    check_rewrites(PASS, text(), ops={"Max": 2}, inputs={"x": x, "v": np.ones((3, 4, 2), np.float32)})


@pytest.mark.parametrize("number", [1e30, -1e10, -1.5e38, 3e9, 1e6])
def test_scores_so_large_that_they_swallow_the_distance(number: float) -> None:
    """Two masks add up where both mask: in a row that is masked as a whole, some are below the others."""
    x = np.full((3, 4, 4), number, np.float32)
    x[0, 0, 1], x[1, :, 2], x[2, :, 1:] = number - abs(number) / 4, number - abs(number), 0
    v = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    check_rewrites(PASS, text(), ops={"Max": 2}, inputs={"x": x, "v": v})

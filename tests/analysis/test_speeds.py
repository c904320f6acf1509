"""Speeds are said in words that need no thought."""

from __future__ import annotations

import pytest

from ortopt.terminal_text import between, faster


@pytest.mark.parametrize(
    ("speed", "said"),
    [(1.2, "1.20× faster"), (0.5, "2.00× slower"), (1.0, "as fast"), (0.998, "as fast"), (1.004, "as fast")],
)
def test_a_speed(speed: float, said: str) -> None:
    assert faster(speed) == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.81, 1.05, "1.23× slower to 1.05× faster"),
        (0.16, 0.4, "2.50× to 6.25× slower"),
        (1.1, 3.8, "1.10× to 3.80× faster"),
        (0.89, 1.0, "1.12× slower to as fast"),
        (1.03, 1.03, "1.03× faster"),
        (1.0, 1.0, "as fast"),
        (9.5, 11.58, "9.50× to 11.58× faster"),
    ],
)
def test_a_range(low: float, high: float, said: str) -> None:
    assert between(low, high) == said

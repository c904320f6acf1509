"""How sure a median is: an interval that holds it, from the samples alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

CONFIDENCE: Final = 0.95


def interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """The median, and the ends of an interval that holds the true median with a confidence.

    By order statistics: nothing is assumed of how times are distributed. Too few ratios give their whole range.

    Args:
        ratios: At least one.
        confidence: The least probability.

    Returns:
        The lower end, the median, the upper end.
    """
    ordered, count = sorted(ratios), len(ratios)
    cut = 0
    while cut + 1 <= (count - 1) // 2 and _coverage(count, cut + 1) >= confidence:
        cut += 1
    return ordered[cut], statistics.median(ordered), ordered[count - 1 - cut]


def _coverage(count: int, cut: int) -> float:
    """The probability that the median lies between what is left of ordered samples when some are cut off each end."""
    tail = sum(math.comb(count, index) for index in range(cut + 1))
    return 1.0 - math.ldexp(2 * tail, -count)


__all__ = ["CONFIDENCE", "interval"]

"""How sure a median is: an interval that holds it, from the samples alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from fractions import Fraction
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
    cut = _cut(count, confidence)
    return ordered[cut], statistics.median(ordered), ordered[count - 1 - cut]


def _cut(count: int, confidence: float) -> int:
    """How many of ordered samples may be cut off each end so that the median lies between the others, most probably.

    The median is outside if more than so many of the samples fell on one side of it: a sum of binomials, as integers,
    since thousands of samples are more than floats can count.
    """
    outside = Fraction(1 - confidence) / 2 * (1 << count)
    cut, ways, tail = 0, 1, 1
    while cut + 1 <= (count - 1) // 2:
        ways = ways * (count - cut) // (cut + 1)
        tail += ways
        if tail > outside:
            break
        cut += 1
    return cut


__all__ = ["CONFIDENCE", "interval"]

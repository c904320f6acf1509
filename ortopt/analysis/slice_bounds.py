"""Which elements a Slice takes along an axis, as ONNX Runtime's kernel reads its bounds."""

from __future__ import annotations

from typing import Final

ENDS: Final = (2**31 - 1, 2**63 - 1)
"""As an end these mean "to the end", in the direction of the step."""


def taken(size: int, start: int, end: int, step: int) -> range:
    """The places of the elements.

    Going backwards, a start before the first element counts as the first one: numpy takes nothing there.

    Args:
        size: The dimension.
        start: Where to begin; counted from the end where it is negative.
        end: Where to stop before; counted from the end where it is negative.
        step: How far apart; not 0.
    """
    if not size:
        return range(0)
    first = start + size if start < 0 else start
    last = end + size if end < 0 else end
    if step > 0:
        return range(min(max(first, 0), size), size if end in ENDS else min(max(last, 0), size), step)
    return range(min(max(first, 0), size - 1), -1 if end in ENDS else min(max(last, -1), size), step)


__all__ = ["ENDS", "taken"]

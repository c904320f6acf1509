"""Speeds in words that need no thought: ``1.20× faster``, ``1.05× slower``."""

from __future__ import annotations

from typing import Final

_AS_FAST: Final = "as fast"


def faster(speed: float) -> str:
    """A speed for people, e.g. ``1.20× faster``.

    Args:
        speed: Relative to what it is compared with: 2 is twice as fast.
    """
    times, word = _times(speed)
    return _AS_FAST if times == "1.00" else f"{times}× {word}"


def between(low: float, high: float) -> str:
    """A range of speeds for people, e.g. ``1.23× slower to 1.05× faster``.

    Args:
        low: The least speed, relative to what it is compared with.
        high: The greatest one.
    """
    (least, word), (most, other) = _times(low), _times(high)
    if _AS_FAST in (faster(low), faster(high)) or word != other:
        return faster(low) if faster(low) == faster(high) else f"{faster(low)} to {faster(high)}"
    if least == most:
        return f"{least}× {word}"
    first, last = sorted((least, most), key=float)
    return f"{first}× to {last}× {word}"


def _times(speed: float) -> tuple[str, str]:
    """How many times faster or slower, at least 1, and which of the two."""
    return (f"{speed:.2f}", "faster") if speed >= 1 else (f"{1 / speed:.2f}", "slower")


__all__ = ["between", "faster"]

"""The patterns that can be written; all of them together are one op family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fuzzing.families.registry import family
from fuzzing.writer import Writer

PLANTS: Final[list[Callable[[Writer], None]]] = []
"""One for each pattern."""


def plant(function: Callable[[Writer], None]) -> Callable[[Writer], None]:
    """Take up a pattern."""
    PLANTS.append(function)
    return function


@family(14)
def _plant(w: Writer) -> None:
    w.random.choice(PLANTS)(w)

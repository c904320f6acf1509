"""The op families that can be written, and how often each is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fuzzing.writer import Writer

Family = Callable[[Writer], object]

FAMILIES: Final[list[tuple[Family, float]]] = []
"""What can be written, and how often."""


def family(weight: float = 1.0) -> Callable[[Family], Family]:
    """Take up a family of ops."""

    def register(function: Family) -> Family:
        FAMILIES.append((function, weight))
        return function

    return register


def step(writer: Writer) -> None:
    """Write one of the families; any that does not fit leaves at most dead nodes."""
    functions, weights = zip(*FAMILIES, strict=True)
    writer.random.choices(functions, weights)[0](writer)

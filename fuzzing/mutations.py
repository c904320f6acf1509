"""Pieces of the zoo's models, changed so that passes meet what no exporter writes."""

from __future__ import annotations

from fuzzing.generator import Case, generate


def mutated(seed: int) -> Case:
    """A piece of a zoo model."""
    return generate(seed)

"""Types of numbers for options, beyond those of click."""

from __future__ import annotations

import math
from typing import Any, Final

import click

THREADS: Final = click.IntRange(min=0, max=1024)
"""Threads within an op: ONNX Runtime starts any number of them, and a million take it hours."""


class Finite(click.FloatRange):
    """A range of floats without infinities and NaN, which pass every comparison or none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a text."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is not finite.", param, ctx)
        return number

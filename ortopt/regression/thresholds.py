"""How much worse than the baseline a figure may be before it is a regression."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ortopt.errors import UsageError


@dataclass(frozen=True, slots=True)
class Threshold:
    """The worst value that is no regression: ``baseline * factor + more``; infinite factors compare nothing.

    Attributes:
        factor: What the baseline is multiplied with.
        more: What is added then.
    """

    factor: float = 1.0
    more: float = 0.0

    @property
    def compares(self) -> bool:
        """Whether anything is a regression."""
        return math.isfinite(self.factor)

    def limit(self, baseline: float) -> float:
        """The worst value that is no regression.

        Args:
            baseline: The baseline's value.
        """
        return baseline * self.factor + self.more if self.compares else math.inf

    def floor(self, baseline: float) -> float:
        """The value below which a figure is clearly better than the baseline.

        Args:
            baseline: The baseline's value.
        """
        return (baseline - self.more) / self.factor if self.compares else -math.inf

    def __str__(self) -> str:
        if not self.compares:
            return OFF
        share = "" if self.factor == 1 else f"{self.factor:g}x"
        more = f"{self.more:.0f}" if self.more == int(self.more) else f"{self.more:g}"
        return " + ".join(filter(None, (share, more if self.more or not share else "")))


OFF: Final = "off"

DEFAULTS: Final[Mapping[str, Threshold]] = {
    "nodes": Threshold(),
    "ops": Threshold(math.inf),
    "fused": Threshold(),
    "size": Threshold(1.01, 1000),
    "error": Threshold(10, 1e-6),
    "rewrites": Threshold(math.inf),
    "repairs": Threshold(),
    "seconds": Threshold(3, 10),
    "memory": Threshold(1.5, 200e6),
    "latency": Threshold(1.05),
    "blocks": Threshold(),
    "node_share": Threshold(1.1),
    "size_share": Threshold(1.02),
}
"""The default thresholds, which docs/ci.md explains. Times depend on the machine: theirs are wide."""

_PART = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(%|x|kb|mb|gb)?", re.IGNORECASE)
_UNITS = {"": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}


def parse(name: str, value: Any) -> Threshold:
    """A threshold as it is written: ``3``, ``5%``, ``2x``, ``5% + 10``, ``1.5x + 100MB``, ``off``.

    Args:
        name: The figure, for messages.
        value: A text or a number.

    Raises:
        UsageError: If there is no such figure, or the value is no threshold.
    """
    if name not in DEFAULTS:
        raise UsageError(f"there is no threshold {name!r}: there is {', '.join(DEFAULTS)}")
    if value == OFF or value is False:
        return Threshold(math.inf)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return Threshold(1.0, float(value))
    factor, more = 1.0, 0.0
    for part in value.split("+") if isinstance(value, str) else [""]:
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"{value!r} is no threshold of {name}; write e.g. 3, 5%, 2x, 1.5x + 100MB or off")
        number, unit = float(match[1]), (match[2] or "").lower()
        if unit == "%":
            factor += number / 100
        elif unit == "x":
            factor *= number
        else:
            more += number * _UNITS[unit]
    if factor < 1:
        raise UsageError(f"a threshold of {name} says how much worse it may be: {value!r} would have it better")
    return Threshold(factor, more)


def parse_all(table: Any) -> dict[str, Threshold]:
    """A table of thresholds by figure.

    Raises:
        UsageError: If it is none.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"thresholds are a table of figures, not {table!r}")
    return {name: parse(name, value) for name, value in table.items()}

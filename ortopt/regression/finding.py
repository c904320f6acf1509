"""`Finding`: one figure that is not the baseline's, and what is said of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["worse", "better", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure that is not the baseline's.

    Attributes:
        kind: ``worse`` is a regression, ``note`` is neither worse nor better.
        fact: The fact; of one by op, pass or family, ``FACT.NAME``.
        value: The value now.
        baseline: The baseline's.
        limit: The worst value that is no regression; None where any change is one, or none.
        says: A sentence.
    """

    kind: Kind
    fact: str
    value: Any
    baseline: Any
    limit: Any
    says: str

    def as_dict(self) -> dict[str, Any]:
        """As data that json can write."""
        return dataclasses.asdict(self)


__all__ = ["Finding", "Kind"]

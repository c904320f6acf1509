"""One figure that is not the baseline's, what is said of it, and the counts that a finding is about."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ortopt.regression.facts import Facts

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


MAX_NAMED: Final = 6
"""How many names a sentence has."""


def changes_of(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """How many more there are than before, by name; those that have not changed are left out.

    Args:
        now: The counts.
        before: The baseline's.
    """
    every = {name: now.get(name, 0) - before.get(name, 0) for name in {*now, *before}}
    return {name: change for name, change in every.items() if change}


def difference_of_ops(now: Facts, before: Facts, told: Container[str] = ()) -> str:
    """The ops that there are more and fewer of, the largest changes first.

    Args:
        now: The facts of the run.
        before: The baseline's.
        told: Ops of which it is told elsewhere.
    """
    changes = changes_of(now.get("ops", {}), before.get("ops", {})).items()
    ranked = sorted(changes, key=lambda item: (-abs(item[1]), item[0]))
    named = [f"{op} {change:+d}" for op, change in ranked if op not in told]
    return ", ".join((*named[:MAX_NAMED], *(["…"] if len(named) > MAX_NAMED else [])))

"""Counts by name beside those of a baseline: ops of a graph, rewrites of passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ortopt.regression.facts import Facts

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


def difference_of_ops(now: Facts, before: Facts) -> str:
    """The ops that there are more and fewer of, the largest changes first.

    Args:
        now: The facts of the run.
        before: The baseline's.
    """
    changes = changes_of(now.get("ops", {}), before.get("ops", {}))
    named = [f"{op} {change:+d}" for op, change in sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0]))]
    return ", ".join((*named[:MAX_NAMED], *(["…"] if len(named) > MAX_NAMED else [])))


__all__ = ["MAX_NAMED", "changes_of", "difference_of_ops"]

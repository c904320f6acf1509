"""Why passes left candidates alone, summed up: one line for all that differ only in the value that they are about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ortopt.instrumentation.explanation import Explanation, RefusedCandidate

_OPTION: Final = re.compile(r"--[a-z]")
"""A reason that names an option."""

_ABSENT: Final = re.compile(r"no .* come(s|) (before|after|from)\b|the rank is not")
"""A reason that says that the pattern is not there."""


def split(reason: str) -> tuple[str, str]:
    """A reason without the value that it is about, which differs at every node; and that value, in brackets."""
    start, bracket, value = reason.rpartition(" (")
    about = f"{bracket}{value}" if start and value.endswith(")") else ""
    return reason.removesuffix(about), about


def by_pass(refusals: Iterable[RefusedCandidate]) -> list[dict[str, Any]]:
    """How often each pass refused a candidate, and why: a row for each pass and reason.

    First what an option would change, last what is not there at all; otherwise the most frequent first.

    Args:
        refusals: The refusals.
    """
    counts = Counter((refusal.transformer, split(refusal.reason)[0]) for refusal in refusals)
    rows = sorted(counts.items(), key=lambda item: (_rank(item[0][1]), -item[1], item[0]))
    return [{"pass": name, "count": count, "reason": reason} for (name, reason), count in rows]


def _rank(reason: str) -> int:
    """How much a reader can do about a reason: 0 is most."""
    if _OPTION.search(reason):
        return 0
    return 2 if _ABSENT.match(reason) else 1


def summary(listener: Explanation, passes: Iterable[str]) -> list[dict[str, Any]]:
    """What each of several passes did in a run: a row for each, with its reasons.

    Args:
        listener: Listened to the run.
        passes: Their names.
    """
    rewrites = Counter(rewrite.transformer for rewrite in listener.rewrites)
    reasons: dict[str, list[dict[str, Any]]] = {}
    for row in by_pass(listener.refusals):
        reasons.setdefault(row["pass"], []).append({"count": row["count"], "reason": row["reason"]})
    rows = [_row(name, rewrites[name], reasons.get(name, [])) for name in dict.fromkeys(passes)]
    return sorted(rows, key=lambda row: (-row["rewrites"], -row["refusals"], row["pass"]))


def _row(name: str, rewrites: int, reasons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    refusals = sum(reason["count"] for reason in reasons)
    return {"pass": name, "rewrites": rewrites, "refusals": refusals, "reasons": reasons}


__all__ = ["by_pass", "split", "summary"]

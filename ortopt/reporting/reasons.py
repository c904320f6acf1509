"""Why passes left candidates alone, summed up: one line for all that differ only in the value that they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ortopt.graph.refusal import Code, Reason
from ortopt.instrumentation.explanation import Explanation, RefusedCandidate

_RANKS = {Code.ABSENT: 2, Code.CONDITION: 1, Code.TYPE: 1, Code.NUMERICS: 1}


def as_data(reason: Reason) -> dict[str, str]:
    """A reason and its parts, as data that json can write."""
    return {"reason": str(reason), "clause": reason.clause, "about": reason.about, "code": reason.code.value}


def rank(code: Code) -> int:
    """How much a reader can do about reasons of a kind: 0, what options of the run decide, is most."""
    return _RANKS.get(code, 0)


def by_pass(refusals: Iterable[RefusedCandidate]) -> list[dict[str, Any]]:
    """How often each pass refused a candidate, and why: a row for each pass and reason.

    First what an option would change, last what is not there at all; otherwise the most frequent first.

    Args:
        refusals: The refusals.
    """
    counts: Counter[tuple[str, str]] = Counter()
    ranks: dict[tuple[str, str], int] = {}
    for refusal in refusals:
        row = refusal.transformer, refusal.reason.clause
        counts[row] += 1
        ranks[row] = rank(refusal.code)
    rows = sorted(counts.items(), key=lambda item: (ranks[item[0]], -item[1], item[0]))
    return [{"pass": name, "count": count, "reason": reason} for (name, reason), count in rows]


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

"""The results of a check as a page for a browser: an index over all models, sorted and filtered there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ortopt.regression.results import EXIT_CODES, Check, Result, Status
from ortopt.reporting.page.document import document

_KINDS: Final[Mapping[Status, str]] = {
    **dict.fromkeys(Status, "good"),
    **dict.fromkeys(EXIT_CODES, "bad"),
    Status.EXPECTED: "unknown",
    Status.UNCHANGED: "",
    Status.SKIPPED: "",
}
"""How a status is coloured; without a colour where nothing has run."""


def text(check: Check) -> str:
    """The page.

    Args:
        check: The results.
    """
    verdict = "failed" if check.exit_code else "passed"
    notes = [*check.notes, *(["interrupted: results are missing"] if check.stopped else [])]
    if check.missing:
        notes.append(f"{len(check.missing)} models of the baseline were not checked: {', '.join(check.missing)}")
    return document(
        {
            "kind": "check",
            "title": f"ortopt check {verdict}",
            "subtitle": f"{len(check.results)} models in {check.seconds:.0f} s"
            + (f", against {check.baseline}" if check.baseline else ""),
            "counts": check.counts(),
            "kinds": {status.value: kind for status, kind in _KINDS.items()},
            "notes": notes,
            "rows": [_row(result) for result in check.results],
        }
    )


def _row(result: Result) -> dict[str, Any]:
    facts = result.facts
    error = facts.get("error")
    rewrites = facts.get("rewrites")
    return {
        "name": result.name,
        "status": result.status.value,
        "nodes": facts.get("nodes"),
        "size": facts.get("size"),
        "error": error if isinstance(error, float | int) else error and str(error),
        "rewrites": sum(rewrites.values()) if rewrites else None,
        "seconds": result.seconds or None,
        "latency": (facts.get("latency") or {}).get("ratio"),
        "says": [*result.says(), *([result.reason] if result.reason else [])],
    }


__all__ = ["text"]

"""What a check has found: a result for each model, and the exit code that follows from all."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ortopt.errors import InvalidModelError
from ortopt.regression.comparison import Finding
from ortopt.regression.facts import Facts

SCHEMA: Final = 1
"""Raised when a field of `Check.as_dict` changes its meaning or goes; new fields do not raise it."""


class Status(enum.Enum):
    """What is said of a model, the worst first."""

    BROKEN = "broken"
    DIFFERS = "differs"
    FAILED = "failed pass"
    UNVERIFIED = "not verified"
    WORSE = "worse"
    ACCEPTED = "accepted"
    EXPECTED = "expected failure"
    FIXED = "fixed"
    NEW = "new"
    CHANGED = "changed"
    BETTER = "better"
    SAME = "same"
    DONE = "done"
    UNCHANGED = "not run"
    SKIPPED = "skipped"


EXIT_CODES: Final[Mapping[Status, int]] = {
    Status.BROKEN: 2,
    Status.DIFFERS: 3,
    Status.WORSE: 3,
    Status.UNVERIFIED: 3,
    Status.FAILED: 4,
}
"""Of a status that is a failure; `Check.exit_code` takes the first of 2, 3, 4."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one case.

    Attributes:
        name: The case's name.
        model: The model's name.
        configuration: The configuration's, or empty.
        status: What is said of it.
        error: Why there is no result; empty if there is one.
        reason: Why it is skipped, or known to fail.
        facts: What it gave; empty where there is no result.
        findings: How it compares with the baseline.
        seconds: How long it took.
    """

    name: str
    model: str
    configuration: str
    status: Status
    error: str = ""
    reason: str = ""
    facts: Facts = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0

    @property
    def is_failure(self) -> bool:
        """Whether the check fails because of it."""
        return self.status in EXIT_CODES

    @property
    def usable(self) -> bool:
        """Whether there is a result."""
        return bool(self.facts) and not self.error

    def says(self, *kinds: str) -> list[str]:
        """Sentences: why there is no result; findings of some kinds, all if none is named; what else was noticed."""
        found = [finding.says for finding in self.findings if not kinds or finding.kind in kinds]
        told = " ".join(found)
        reasons = [reason for reason in self.facts.get("reasons", ()) if reason not in told]
        return [*([self.error] if self.error else []), *found, *(reasons if not kinds or "note" in kinds else [])]

    def as_dict(self) -> dict[str, Any]:
        """As data that json can write."""
        return {
            "name": self.name,
            "model": self.model,
            "configuration": self.configuration or None,
            "status": self.status.value,
            "failed": self.is_failure,
            "usable": self.usable,
            "error": self.error or None,
            "reason": self.reason or None,
            "facts": self.facts or None,
            "findings": [finding.as_dict() for finding in self.findings],
            "seconds": self.seconds,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Result:
        """The result that `as_dict` wrote.

        Raises:
            InvalidModelError: If it is none.
        """
        try:
            return Result(
                data["name"],
                data["model"],
                data["configuration"] or "",
                Status(data["status"]),
                data["error"] or "",
                data["reason"] or "",
                data["facts"] or {},
                tuple(Finding(**row) for row in data["findings"]),
                data["seconds"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidModelError(f"no result of ortopt check: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Check:
    """The results of all models.

    Attributes:
        results: By name.
        versions: The versions that took part.
        baseline: The baseline's file; empty if there is none.
        missing: Cases of the baseline that were not named.
        shard: The number of this part and of all; None where nothing is shared out.
        seconds: How long all took.
        stopped: Whether it was interrupted, so that results are missing.
        notes: What else is to be told.
    """

    results: tuple[Result, ...]
    versions: Mapping[str, str]
    baseline: str = ""
    missing: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None
    seconds: float = 0.0
    stopped: bool = False
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where nothing is worse; else the first of 2, 3 and 4 that a result asks for."""
        return min((EXIT_CODES[result.status] for result in self.results if result.is_failure), default=0)

    def counts(self) -> dict[str, int]:
        """How many results there are of each status, the worst first; those of which there are none are left out."""
        counted = Counter(result.status for result in self.results)
        return {status.value: counted[status] for status in Status if counted[status]}

    def as_dict(self) -> dict[str, Any]:
        """As data that json can write; docs/json.md describes it."""
        return {
            "schema": SCHEMA,
            "versions": dict(self.versions),
            "baseline": self.baseline or None,
            "shard": None if self.shard is None else {"number": self.shard[0], "of": self.shard[1]},
            "counts": self.counts(),
            "exit_code": self.exit_code,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "missing": list(self.missing),
            "notes": list(self.notes),
            "models": [result.as_dict() for result in self.results],
        }

    @staticmethod
    def from_dict(data: Any) -> Check:
        """The check that `as_dict` wrote.

        Raises:
            InvalidModelError: If it is none.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("models"), list):
            raise InvalidModelError(f"no results of ortopt check of schema {SCHEMA}")
        try:
            shard = data["shard"]
            return Check(
                tuple(map(Result.from_dict, data["models"])),
                data["versions"],
                data["baseline"] or "",
                tuple(data["missing"]),
                None if shard is None else (shard["number"], shard["of"]),
                data["seconds"],
                data["stopped"],
                tuple(data["notes"]),
            )
        except (KeyError, TypeError) as error:
            raise InvalidModelError(f"no results of ortopt check: {error!r}") from error


def sorted_by_name(results: Iterable[Result]) -> tuple[Result, ...]:
    """Results in the order of names."""
    return tuple(sorted(results, key=lambda result: result.name))


def with_findings(result: Result, status: Status, findings: Iterable[Finding] = (), **more: Any) -> Result:
    """A result of which something is said."""
    return dataclasses.replace(result, status=status, findings=tuple(findings), **more)


__all__ = ["EXIT_CODES", "SCHEMA", "Check", "Result", "Status", "sorted_by_name", "with_findings"]

"""What a check has found: a result for each model, and the exit code that follows from all."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct, structs, to_builtins

from ortopt import documents
from ortopt.documents import Amount
from ortopt.regression.facts import Facts, checked, latency_in_words
from ortopt.terminal_text import quoted

Kind = Literal["worse", "better", "note"]


class Finding(Struct, frozen=True):
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


SCHEMA: Final = 1
"""Raised when a field of `Check.as_dict` changes its meaning or goes; new fields do not raise it."""


class Status(enum.Enum):
    """What is said of a model, the worst first."""

    BROKEN = "broken"
    DIFFERS = "differs"
    FAILED = "failed pass"
    UNVERIFIED = "not verified"
    WORSE = "worse"
    VANISHED = "vanished"
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
    Status.VANISHED: 3,
    Status.UNVERIFIED: 3,
    Status.FAILED: 4,
}
"""Of a status that is a failure; `Check.exit_code` takes the first of 2, 3, 4."""


_EMPTY: Final = {**dict.fromkeys(("configuration", "error", "reason", "baseline", "compared"), ""), "facts": {}}
"""What is null in a file."""


def _with_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value == _EMPTY.get(name) else value for name, value in data.items()}


def _without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _EMPTY.get(name) if value is None else value for name, value in data.items()}


class Result(Struct, frozen=True):
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
    facts: Facts = {}
    findings: tuple[Finding, ...] = ()
    seconds: Amount = 0.0

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
        measured = self.facts.get("latency", {})
        if measured.get("at") and all(finding.fact != "latency" for finding in self.findings):
            reasons.append(f"latency {latency_in_words(measured)}")
        return [*([self.error] if self.error else []), *found, *(reasons if not kinds or "note" in kinds else [])]

    def as_dict(self) -> dict[str, Any]:
        """As data that json can write."""
        return {**_with_nulls(to_builtins(self)), "failed": self.is_failure, "usable": self.usable}


_Number: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]


class Shard(Struct, frozen=True):
    """One part of a zoo.

    Attributes:
        number: Its number, from 1.
        of: How many parts there are.
    """

    number: _Number
    of: _Number


class Check(Struct, frozen=True, rename={"results": "models"}):
    """The results of all models.

    Attributes:
        results: By name.
        versions: The versions that took part.
        baseline: The baseline's file; empty if there is none.
        missing: Cases of the baseline that were not named.
        shard: Which part it is; None where nothing is shared out.
        seconds: How long all took.
        stopped: Whether it was interrupted, so that results are missing.
        notes: What else is to be told.
        compared: The file of the other baseline, where two are compared and nothing has run; else empty.
    """

    results: tuple[Result, ...]
    versions: Mapping[str, str]
    baseline: str = ""
    missing: tuple[str, ...] = ()
    shard: Shard | None = None
    seconds: Amount = 0.0
    stopped: bool = False
    notes: tuple[str, ...] = ()
    compared: str = ""

    @property
    def title(self) -> str:
        """What it is, and whether it fails."""
        return f"ortopt check {'diff ' if self.compared else ''}{'failed' if self.exit_code else 'passed'}"

    @property
    def scope(self) -> str:
        """How many models it is about, and how long it took or what was compared."""
        models = f"{len(self.results)} model{'' if len(self.results) == 1 else 's'}"
        if self.compared:
            return f"{models} of {self.compared} against {self.baseline}"
        return f"{models} in {self.seconds:.0f} s"

    @property
    def exit_code(self) -> int:
        """0 where nothing is worse; else the first of 2, 3 and 4 that a result asks for."""
        return min((EXIT_CODES[result.status] for result in self.results if result.is_failure), default=0)

    @property
    def ranked(self) -> list[Result]:
        """The results, the worst first; by name where they are alike."""
        rank = {status: place for place, status in enumerate(Status)}
        return sorted(self.results, key=lambda result: rank[result.status])

    def advice(self) -> list[str]:
        """How what fails because of the baseline is accepted, if that is what is wanted."""
        if self.compared:
            return []
        worse = [result for result in self.results if result.status is Status.WORSE]
        advice = []
        if worse:
            changed = any(finding.fact in ("model", "options") for result in worse for finding in result.findings)
            in_manifest = ", or accept_changes in the manifest" if changed else ""
            advice.append(f"to accept what is worse: --update{in_manifest}")
        if any(result.status is Status.VANISHED for result in self.results):
            advice.append("to accept what has vanished: --update --prune, or removed in the manifest")
        return advice

    def counts(self) -> dict[str, int]:
        """How many results there are of each status, the worst first; those of which there are none are left out."""
        counted = Counter(result.status for result in self.results)
        return {status.value: counted[status] for status in Status if counted[status]}

    def as_dict(self) -> dict[str, Any]:
        """As data that json can write; docs/json.md describes it."""
        return {
            "schema": SCHEMA,
            **_with_nulls(to_builtins(self)),
            "counts": self.counts(),
            "exit_code": self.exit_code,
            "models": [result.as_dict() for result in self.results],
        }


_WHAT: Final = "no results of ortopt check"


class _Document(Struct):
    schema: int
    models: list[dict[str, Any]]


def read(path: str | Path) -> Check:
    """The check whose `as_dict` a file holds.

    Raises:
        InvalidModelError: If it holds none.
    """
    data = documents.read_json(path, dict[str, Any], _WHAT, schema=SCHEMA)
    try:
        rows = documents.typed(data, _Document).models
        check = documents.typed({**_without_nulls(data), "models": [_without_nulls(row) for row in rows]}, Check)
        for result in check.results:
            _check_facts(result)
    except ValueError as error:
        raise documents.invalid(path, _WHAT, error) from error
    return check


def _check_facts(result: Result) -> None:
    try:
        checked(result.facts, whole=result.usable)
    except ValueError as error:
        raise ValueError(f"{quoted(result.name)}: {error}") from error


def sorted_by_name(results: Iterable[Result]) -> tuple[Result, ...]:
    """Results in the order of names."""
    return tuple(sorted(results, key=lambda result: result.name))


def accepted(result: Result, *, pruned: bool) -> Result:
    """A result whose regressions are taken into the baseline.

    Args:
        result: The result.
        pruned: Whether models that are no longer there leave the baseline.
    """
    if result.status is Status.WORSE or (result.status is Status.VANISHED and pruned):
        return structs.replace(result, status=Status.ACCEPTED)
    return result


def with_findings(result: Result, status: Status, findings: Iterable[Finding] = (), **more: Any) -> Result:
    """A result of which something is said."""
    return structs.replace(result, status=status, findings=tuple(findings), **more)

"""What is said of a model, from what came of it, the baseline, and what its manifest expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ortopt.regression.baseline import Baseline
from ortopt.regression.case import Case
from ortopt.regression.comparison import compare
from ortopt.regression.facts import Facts
from ortopt.regression.model_run import DIFFERS, Answer
from ortopt.regression.results import Finding, Result, Status, with_findings


def judge(
    case: Case, answer: Answer, baseline: Baseline | None, versions: Mapping[str, str], *, strict: bool
) -> Result:
    """What is said of a model.

    Args:
        case: The model.
        answer: What came of it.
        baseline: What is compared with; None where nothing is.
        versions: The versions of this run.
        strict: Whether a result that could not be verified, and a pass that failed, are failures.
    """
    facts: Facts = answer["facts"]
    result = Result(
        case.name, case.model, case.configuration, Status.SAME, facts=facts, seconds=facts.get("seconds", 0)
    )
    before = None if baseline is None else baseline.models.get(case.name)
    expected = case.settings.expected_failure if before is None or before.get("verified") != "verified" else ""
    failure = _failure(answer, strict=strict)
    if answer["error"]:
        result = with_findings(result, Status.SAME, error=answer["error"])
    if failure is not None and expected:
        return with_findings(result, Status.EXPECTED, reason=expected)
    if failure in (Status.BROKEN, Status.DIFFERS):
        return with_findings(result, failure)
    status, findings = _compared(case, facts, before, baseline, versions)
    if status is Status.ACCEPTED:
        result = with_findings(result, status, reason=case.settings.accepted_changes)
    if failure is not None and status != Status.WORSE:
        status = failure
    if expected and facts.get("verified") == "verified" and status != Status.WORSE:
        return with_findings(result, Status.FIXED, findings, reason=expected)
    return with_findings(result, status, findings)


def _failure(answer: Answer, *, strict: bool) -> Status | None:
    """What is wrong with a run whatever the baseline says."""
    if answer["error"]:
        return Status.DIFFERS if answer["kind"] == DIFFERS else Status.BROKEN
    if strict and answer["facts"].get("verified") != "verified":
        return Status.UNVERIFIED
    return Status.FAILED if strict and answer["facts"].get("failures") else None


def _compared(
    case: Case, facts: Facts, before: Facts | None, baseline: Baseline | None, versions: Mapping[str, str]
) -> tuple[Status, list[Any]]:
    if baseline is None:
        return Status.DONE, []
    if before is None:
        return Status.NEW, []
    same = dict(baseline.versions) == dict(versions)
    findings = compare(facts, before, case.settings.thresholds, same_versions=same)
    kinds = {finding.kind for finding in findings}
    has_changed = any(finding.fact in ("model", "options") for finding in findings)
    if "worse" in kinds:
        return Status.ACCEPTED if has_changed and case.settings.accepted_changes else Status.WORSE, findings
    if has_changed:
        return Status.CHANGED, findings
    return (Status.BETTER if "better" in kinds else Status.SAME), findings


def skipped(case: Case) -> Result:
    """The result of a model that the manifest leaves out."""
    return Result(case.name, case.model, case.configuration, Status.SKIPPED, reason=case.settings.skip)


def vanished(case: Case, baseline: Baseline, *, has_model: bool, pruned: bool) -> Result:
    """The result of a case of the baseline that the arguments name, and that is not there any more.

    Args:
        case: The case; it has no model.
        baseline: The baseline.
        has_model: Whether the model is there, in other configurations.
        pruned: Whether it leaves the baseline.
    """
    reason = case.settings.skip or ("" if pruned else case.settings.removed)
    if reason:
        return Result(case.name, case.model, case.configuration, Status.SKIPPED, reason=reason)
    what = "configuration of it" if has_model else "model"
    says = f"it is in the baseline, and there is no such {what} any more"
    finding = Finding("worse", "model", None, baseline.models[case.name].get("model"), None, says)
    return Result(case.name, case.model, case.configuration, Status.VANISHED, findings=(finding,))


def unchanged(case: Case, facts: Facts) -> Result:
    """The result of a model that need not run: what it would give is known."""
    return Result(case.name, case.model, case.configuration, Status.UNCHANGED, facts=facts)

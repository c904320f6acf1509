"""What has become of a model: worse or better than the baseline, in sentences with figures, and what is said of it."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import structs

from ortopt import registry
from ortopt.analysis.blocks import FAMILIES
from ortopt.graph.index import op_key
from ortopt.regression import changed_model
from ortopt.regression.baseline import Baseline
from ortopt.regression.case import Case
from ortopt.regression.facts import Facts, latency_in_words, measured_alike, times
from ortopt.regression.model_run import DIFFERS, Answer
from ortopt.regression.results import Finding, Result, Status, changes_of, difference_of_ops, with_findings
from ortopt.regression.thresholds import DEFAULTS, Threshold
from ortopt.reporting.report import size


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
    facts: Facts = answer.facts
    result = Result(
        case.name, case.model, case.configuration, Status.SAME, facts=facts, seconds=facts.get("seconds", 0)
    )
    before = None if baseline is None else baseline.models.get(case.name)
    expected = case.settings.expected_failure if before is None or before.get("verified") != "verified" else ""
    failure = _failure(answer, strict=strict)
    if answer.error:
        result = with_findings(result, Status.SAME, error=answer.error)
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
    if answer.error:
        return Status.DIFFERS if answer.kind == DIFFERS else Status.BROKEN
    if strict and answer.facts.get("verified") != "verified":
        return Status.UNVERIFIED
    return Status.FAILED if strict and answer.facts.get("failures") else None


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


_ROUNDING: Final = 0.05
"""The share of an error's bound that other roundings come to, whatever the baseline's error is."""


def compare(
    now: Facts,
    before: Facts,
    thresholds: Mapping[str, Threshold],
    *,
    same_versions: bool,
) -> list[Finding]:
    """Compare the facts of a run with the baseline's.

    Args:
        now: The facts of the run.
        before: The baseline's.
        thresholds: How much worse each figure may be.
        same_versions: Whether both come from the same versions, so that results must be the same to the byte.
    """
    is_same_file = now.get("model") == before.get("model")
    changes = list(_changes_of_run(now, before))
    found = [*_verified(now, before), *changed_model.interface(now, before, has_changed=bool(changes))]
    blocks = list(_blocks(now, before, thresholds))
    lost = changed_model.fused(now, before, thresholds)
    if is_same_file:
        lost = itertools.chain(_fused(now, before, thresholds), _ops(now, before, thresholds))
    fused = list(_without_blocks(lost, blocks))
    told = {finding.fact.partition(".")[2] for finding in fused if finding.kind == "worse"}
    if is_same_file:
        figures = [finding for name in _FIGURES for finding in _figure(name, now, before, thresholds, told)]
    else:
        figures = list(changed_model.shares(now, before, thresholds, told))
    found += [*_repairs(now, before, thresholds), *blocks, *fused, *figures, *_latency(now, before, thresholds)]
    found, has_named_passes = _with_passes(found, now, before)
    if is_same_file:
        fewer = _rewrites(now, before, thresholds)
        found += [finding for finding in fewer if finding.kind == "worse" or not has_named_passes]
    found = sorted([*changes, *found], key=lambda finding: finding.kind != "worse")
    if same_versions and now.get("result") != before.get("result") and not found:
        says = "the result has other bytes than the baseline's, with the same figures"
        found.append(Finding("note", "result", now.get("result"), before.get("result"), None, says))
    return found


def _changes_of_run(now: Facts, before: Facts) -> Iterator[Finding]:
    """What makes it another run than the baseline's, beside versions."""
    if now.get("model") != before.get("model"):
        says = "the model's file has changed since the baseline"
        lacks = [fact for fact in ("original", "blocks") if fact in now and fact not in before]
        if lacks:
            says += ", which an older ortopt wrote: shares of nodes, bytes and blocks are not compared"
        yield Finding("note", "model", now.get("model"), before.get("model"), None, says)
    if now.get("options") != before.get("options"):
        new, old = (facts.get("options") or "none" for facts in (now, before))
        says = f"the options have changed since the baseline: {new}, baseline {old}"
        yield Finding("note", "options", now.get("options"), before.get("options"), None, says)


def _verified(now: Facts, before: Facts) -> Iterator[Finding]:
    was, is_now = before.get("verified"), now.get("verified")
    if was == is_now:
        return
    reasons = "; ".join(now.get("reasons", ()))
    if was == "verified":
        says = f"the result is no longer verified: {is_now}{f' ({reasons})' if reasons else ''}"
        yield Finding("worse", "verified", is_now, was, None, says)
    elif is_now == "verified" and was != "not asked for":
        yield Finding("better", "verified", is_now, was, None, f"the result is verified; it was {was}")
    else:
        yield Finding("note", "verified", is_now, was, None, f"verification: {is_now}; in the baseline: {was}")


_FIGURES: Final = ("nodes", "size", "error", "seconds", "memory")


def _figure(
    name: str, now: Facts, before: Facts, thresholds: Mapping[str, Threshold], told: Container[str]
) -> Iterator[Finding]:
    new, old = now.get(name), before.get(name)
    if old is None or new is None or old == new:
        return
    threshold = thresholds[name]
    value, baseline = _number(new), _number(old)
    shown = _shown(name, new), _shown(name, old)
    limit = threshold.limit(baseline)
    if name == "error" and threshold == DEFAULTS[name]:
        limit = max(limit, _number(now.get("bound") or 0) * _ROUNDING)
    if value > limit:
        bound = f", bound {now['bound']:.2g}" if name == "error" and isinstance(now.get("bound"), float) else ""
        says = f"{name} {shown[0]}, baseline {shown[1]} (allowed: {_shown(name, limit)}{bound})"
        if name == "nodes":
            ops = difference_of_ops(now, before, told)
            says = f"nodes {new}, baseline {old}{f' ({ops})' if ops else ''}"
        yield Finding("worse", name, new, old, limit, says)
    elif value < threshold.floor(baseline):
        yield Finding("better", name, new, old, limit, f"{name} {shown[0]}, baseline {shown[1]}")


def _number(value: Any) -> float:
    """A figure as a number; infinity and NaN are texts in facts, and worse than all others."""
    return float(value) if isinstance(value, int | float) else float("inf")


def _shown(name: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if name in ("size", "memory"):
        return size(int(value))
    return f"{value:.3g} s" if name == "seconds" else f"{value:.3g}" if name == "error" else f"{value:g}"


def _ops(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    threshold, fused = thresholds["ops"], {*now.get("fused", {}), *before.get("fused", {})}
    for op, change in sorted(changes_of(now.get("ops", {}), before.get("ops", {})).items()):
        old = before.get("ops", {}).get(op, 0)
        limit = threshold.limit(old)
        if op not in fused and change > 0 and old + change > limit:
            says = f"{op}: {old + change} nodes, baseline {old} (allowed: {limit:g})"
            yield Finding("worse", f"ops.{op}", old + change, old, limit, says)


def _fused(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    """Fused ops lost; where as many others have come and the graph is smaller, they have been fused further."""
    new, old = now.get("fused", {}), before.get("fused", {})
    fewer_nodes = now.get("nodes", 0) < before.get("nodes", 0)
    further = fewer_nodes and sum(new.values()) >= sum(old.values())
    for op, change in sorted(changes_of(new, old).items()):
        is_now, was = new.get(op, 0), old.get(op, 0)
        says = f"fused op {op}: {is_now}, baseline {was}"
        allowed = thresholds["fused"].compares and -change <= thresholds["fused"].limit(was) - was
        if change > 0:
            yield Finding("better", f"fused.{op}", is_now, was, None, f"{says}: {change} gained")
        elif further or allowed or not thresholds["fused"].compares:
            yield Finding("note", f"fused.{op}", is_now, was, None, says)
        else:
            yield Finding("worse", f"fused.{op}", is_now, was, None, f"{says}: {-change} lost")


def _blocks(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    """Blocks that are no longer one op: more of them than before, by number and by share."""
    new, old = now.get("blocks"), before.get("blocks")
    if new is None or old is None:
        return
    is_same_file = now.get("model") == before.get("model")
    threshold = thresholds["blocks"]
    for family in sorted({*new, *old}):
        is_now, was = new.get(family, _NO_BLOCKS), old.get(family, _NO_BLOCKS)
        share, old_share = _spelled_out(is_now), _spelled_out(was)
        limit = threshold.limit(old_share)
        says = f"{family}: {is_now['fused']} of {is_now['found']} blocks are one op"
        says += f", baseline {was['fused']} of {was['found']}"
        more = is_now["found"] - is_now["fused"] > was["found"] - was["fused"]
        have_vanished = was["fused"] > 0 and not is_now["found"] and not is_same_file and threshold.compares
        if (more and was["found"] and share > limit) or have_vanished:
            yield Finding("worse", f"blocks.{family}", share, old_share, limit, says)
        elif share < threshold.floor(old_share) and is_now["found"]:
            yield Finding("better", f"blocks.{family}", share, old_share, limit, says)
        elif is_now != was and not is_same_file:
            yield Finding("note", f"blocks.{family}", share, old_share, limit, says)


_NO_BLOCKS: Final = {"found": 0, "fused": 0}


def _spelled_out(blocks: Mapping[str, int]) -> float:
    """The share of blocks that are not one op."""
    return 1 - blocks["fused"] / blocks["found"] if blocks["found"] else 0.0


def _without_blocks(fused: Iterable[Finding], blocks: Iterable[Finding]) -> Iterator[Finding]:
    """Findings on fused ops, but for those of families of which it is told already that their blocks are lost."""
    told = {finding.fact.partition(".")[2] for finding in blocks if finding.kind == "worse"}
    ops = {f"fused.{op_key(*op)}" for family in told & FAMILIES.keys() for op in FAMILIES[family].ops}
    return (finding for finding in fused if finding.fact not in ops)


def _repairs(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    for fact, what in (("repairs", "left out because the result differed"), ("failures", "left out because it failed")):
        new, old = now.get(fact, {}), before.get(fact, {})
        for name, change in sorted(changes_of(new, old).items()):
            is_now, was = new.get(name, 0), old.get(name, 0)
            limit = thresholds["repairs"].limit(was)
            reasons = "; ".join(reason for reason in now.get("reasons", ()) if name in reason)
            says = f"{name} was {what}, baseline: {was or 'not'} ({reasons})"
            if is_now > limit:
                yield Finding("worse", f"{fact}.{name}", is_now, was, limit, says)
            elif change < 0:
                yield Finding("better", f"{fact}.{name}", is_now, was, limit, f"{name} is no longer {what}")


def _rewrites(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    """Passes that do less: a regression by its own threshold only."""
    new, old = now.get("rewrites", {}), before.get("rewrites", {})
    for name, change in sorted(changes_of(new, old).items()):
        is_now, was = new.get(name, 0), old.get(name, 0)
        if change > 0:
            continue
        threshold = thresholds["rewrites"]
        worse = threshold.compares and was - is_now > threshold.limit(was) - was
        says = f"{name} {'no longer fires' if not is_now else f'fires {is_now} times'}, baseline: {was} times"
        if worse or not is_now:
            yield Finding("worse" if worse else "note", f"rewrites.{name}", is_now, was, None, says)


_BY_PASSES: Final = ("nodes", "ops", "fused", "size", "error", "latency", "blocks", "node_share", "size_share")
"""Facts that passes are to blame for."""

_MAX_PASSES: Final = 3
"""How many passes a sentence names."""


def _with_passes(found: list[Finding], now: Facts, before: Facts) -> tuple[list[Finding], bool]:
    """Findings, the first regression among them with the passes that do more or less than in the baseline.

    Whether there are such passes is the second result.
    """
    blamed = (finding.kind == "worse" and finding.fact.partition(".")[0] in _BY_PASSES for finding in found)
    at = next((index for index, is_blamed in enumerate(blamed) if is_blamed), None)
    names = [] if at is None else _to_blame(now, before)
    if at is None or not names:
        return found, False
    new, old = now.get("rewrites", {}), before.get("rewrites", {})
    told = [
        f"{name} no longer fires ({old[name]} times)"
        if not new.get(name)
        else f"{name} fires {new[name]} times (baseline {old.get(name, 0)})"
        for name in names[:_MAX_PASSES]
    ]
    if more := len(names[_MAX_PASSES:]):
        told.append(f"and {more} more")
    with_passes = structs.replace(found[at], says=f"{found[at].says}; {', '.join(told)}")
    return [*found[:at], with_passes, *found[at + 1 :]], True


def _to_blame(now: Facts, before: Facts) -> list[str]:
    """The passes that do more or less than in the baseline: those that fuse and no longer fire come first.

    Of another file, only passes that fuse: how often the others fire depends on its exporter.
    """
    new, old = now.get("rewrites", {}), before.get("rewrites", {})
    changes = changes_of(new, old)
    fusing = {kind.name for kind in registry.installed() if kind.produces or kind.fuses}
    if now.get("model") != before.get("model"):
        changes = {name: change for name, change in changes.items() if name in fusing and change < 0}
    return sorted(
        changes, key=lambda name: (changes[name] > 0, name not in fusing, bool(new.get(name)), changes[name], name)
    )


def _latency(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    """A regression only where even the better end of the interval is beyond the threshold."""
    new, old = now.get("latency"), before.get("latency")
    if new is None:
        return
    says = f"latency {latency_in_words(new)}"
    if old is None:
        if new["low"] > 1:
            yield Finding("note", "latency", new["ratio"], None, None, says)
        return
    if not measured_alike(new, old):
        says += "; the baseline's was measured at other sizes and is not compared (--update takes the new one)"
        yield Finding("note", "latency", new["ratio"], old["ratio"], None, says)
        return
    limit = thresholds["latency"].limit(old["ratio"])
    says += f", baseline {times(old['ratio'])}"
    if new["low"] > limit:
        yield Finding("worse", "latency", new["ratio"], old["ratio"], limit, f"{says} (allowed: {times(limit)})")
    elif new["high"] < thresholds["latency"].floor(old["ratio"]):
        yield Finding("better", "latency", new["ratio"], old["ratio"], limit, says)

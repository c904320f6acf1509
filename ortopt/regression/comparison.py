"""What has become worse than the baseline, and what better: each a sentence with the figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ortopt.analysis.speeds import faster
from ortopt.regression.facts import Facts
from ortopt.regression.thresholds import DEFAULTS, Threshold
from ortopt.reporting.report import size

Kind = Literal["worse", "better", "note"]

_MAX_NAMED: Final = 6

_ROUNDING: Final = 0.05
"""The share of an error's bound that other roundings come to, whatever the baseline's error is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure that is not the baseline's.

    Attributes:
        kind: ``worse`` is a regression, ``note`` is neither worse nor better.
        fact: The fact; of one by op or pass, ``FACT.NAME``.
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
    found = [*_verified(now, before), *_interface(now, before)]
    for fact, what in (("model", "the model's file"), ("options", "the options")):
        if now.get(fact) != before.get(fact):
            says = f"{what} changed since the baseline: figures are not compared (--update takes the new ones)"
            return [*found, Finding("note", fact, now.get(fact), before.get(fact), None, says)]
    counts = [*_repairs(now, before, thresholds), *_fused(now, before, thresholds), *_ops(now, before, thresholds)]
    figures = [finding for name in _FIGURES for finding in _figure(name, now, before, thresholds)]
    found += [*figures, *counts, *_latency(now, before, thresholds)]
    has_worsened = any(finding.kind == "worse" for finding in found)
    found = [_with_passes(finding, now, before) for finding in found]
    found += _rewrites(now, before, thresholds, has_worsened=has_worsened)
    if same_versions and now.get("result") != before.get("result") and not found:
        says = "the result has other bytes than the baseline's, with the same figures"
        found.append(Finding("note", "result", now.get("result"), before.get("result"), None, says))
    return found


def _verified(now: Facts, before: Facts) -> Iterator[Finding]:
    was, is_now = before.get("verified"), now.get("verified")
    if was == is_now:
        return
    reasons = "; ".join(now.get("reasons", ()))
    if was == "verified" and is_now != "not asked for":
        says = f"the result is no longer verified: {is_now}{f' ({reasons})' if reasons else ''}"
        yield Finding("worse", "verified", is_now, was, None, says)
    elif is_now == "verified" and was != "not asked for":
        yield Finding("better", "verified", is_now, was, None, f"the result is verified; it was {was}")
    else:
        yield Finding("note", "verified", is_now, was, None, f"verification: {is_now}; in the baseline: {was}")


def _interface(now: Facts, before: Facts) -> Iterator[Finding]:
    same_model = now.get("model") == before.get("model") and now.get("options") == before.get("options")
    for fact in ("inputs", "outputs"):
        old, new = before.get(fact, []), now.get(fact, [])
        if old != new:
            says = f"{fact}: {', '.join(new) or 'none'}; in the baseline {', '.join(old) or 'none'}"
            yield Finding("worse" if same_model else "note", fact, new, old, None, says)


_FIGURES: Final = ("nodes", "size", "error", "seconds", "memory")


def _figure(name: str, now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
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
            says = f"nodes {new}, baseline {old} ({_difference(now, before)})"
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


def _difference(now: Facts, before: Facts) -> str:
    """The ops that there are more and fewer of, the largest changes first."""
    changes = _changes(now.get("ops", {}), before.get("ops", {}))
    named = [f"{op} {change:+d}" for op, change in sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0]))]
    return ", ".join((*named[:_MAX_NAMED], *(["…"] if len(named) > _MAX_NAMED else [])))


def _changes(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    every = {name: now.get(name, 0) - before.get(name, 0) for name in {*now, *before}}
    return {name: change for name, change in every.items() if change}


def _ops(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    threshold, fused = thresholds["ops"], {*now.get("fused", {}), *before.get("fused", {})}
    for op, change in sorted(_changes(now.get("ops", {}), before.get("ops", {})).items()):
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
    for op, change in sorted(_changes(new, old).items()):
        is_now, was = new.get(op, 0), old.get(op, 0)
        says = f"fused op {op}: {is_now}, baseline {was}"
        allowed = thresholds["fused"].compares and -change <= thresholds["fused"].limit(was) - was
        if change > 0:
            yield Finding("better", f"fused.{op}", is_now, was, None, f"{says}: {change} gained")
        elif further or allowed or not thresholds["fused"].compares:
            yield Finding("note", f"fused.{op}", is_now, was, None, says)
        else:
            yield Finding("worse", f"fused.{op}", is_now, was, None, f"{says}: {-change} lost")


def _repairs(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    for fact, what in (("repairs", "left out because the result differed"), ("failures", "left out because it failed")):
        new, old = now.get(fact, {}), before.get(fact, {})
        for name, change in sorted(_changes(new, old).items()):
            is_now, was = new.get(name, 0), old.get(name, 0)
            limit = thresholds["repairs"].limit(was)
            reasons = "; ".join(reason for reason in now.get("reasons", ()) if name in reason)
            says = f"{name} was {what}, baseline: {was or 'not'} ({reasons})"
            if is_now > limit:
                yield Finding("worse", f"{fact}.{name}", is_now, was, limit, says)
            elif change < 0:
                yield Finding("better", f"{fact}.{name}", is_now, was, limit, f"{name} is no longer {what}")


def _rewrites(
    now: Facts, before: Facts, thresholds: Mapping[str, Threshold], *, has_worsened: bool
) -> Iterator[Finding]:
    """Passes that do less: a regression by its own threshold only, but the likely cause of another."""
    new, old = now.get("rewrites", {}), before.get("rewrites", {})
    for name, change in sorted(_changes(new, old).items()):
        is_now, was = new.get(name, 0), old.get(name, 0)
        if change > 0:
            continue
        threshold = thresholds["rewrites"]
        worse = threshold.compares and was - is_now > threshold.limit(was) - was
        says = f"{name} {'no longer fires' if not is_now else f'fires {is_now} times'}, baseline: {was} times"
        if worse or has_worsened or not is_now:
            yield Finding("worse" if worse else "note", f"rewrites.{name}", is_now, was, None, says)


_BY_PASSES: Final = ("nodes", "ops", "fused", "size", "error", "latency")
"""Facts that passes are to blame for."""


def _with_passes(finding: Finding, now: Facts, before: Facts) -> Finding:
    """A regression with the passes that do more or less than in the baseline, those that no longer fire first."""
    if finding.kind != "worse" or finding.fact.partition(".")[0] not in _BY_PASSES:
        return finding
    new, old = now.get("rewrites", {}), before.get("rewrites", {})
    changes = _changes(new, old)
    order = sorted(changes, key=lambda name: (bool(new.get(name)), changes[name], name))
    named = [
        f"{name} no longer fires ({old[name]} times)"
        if not new.get(name)
        else f"{name} fires {new[name]} times (baseline {old.get(name, 0)})"
        for name in order[:_MAX_NAMED]
    ]
    return dataclasses.replace(finding, says=f"{finding.says}; {', '.join(named)}") if named else finding


def _latency(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    """A regression only where even the better end of the interval is beyond the threshold."""
    new, old = now.get("latency"), before.get("latency")
    if new is None:
        return
    low, high = faster(1 / new["high"]), faster(1 / new["low"])
    interval = f"{faster(1 / new['ratio'])} than the original (95 %: {low} to {high})".replace("fast than", "fast as")
    if old is None:
        if new["low"] > 1:
            yield Finding("note", "latency", new["ratio"], None, None, f"latency: {interval}")
        return
    limit = thresholds["latency"].limit(old["ratio"])
    says = f"latency: {interval}, baseline {faster(1 / old['ratio'])}"
    if new["low"] > limit:
        yield Finding("worse", "latency", new["ratio"], old["ratio"], limit, f"{says} (allowed: {faster(1 / limit)})")
    elif new["high"] < thresholds["latency"].floor(old["ratio"]):
        yield Finding("better", "latency", new["ratio"], old["ratio"], limit, says)


__all__ = ["Finding", "Kind", "compare"]

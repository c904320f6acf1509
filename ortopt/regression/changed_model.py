"""A model that is not the baseline's any more, beside it: what can be compared although the original is another one.

Figures of the result alone say nothing then: a model with twice the layers has twice the nodes, and an exporter that
folds its constants leaves less to do. So a figure counts as worse only where the result has become worse both by
itself and relative to its original.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ortopt.regression.facts import Facts
from ortopt.regression.results import Finding, difference_of_ops
from ortopt.regression.thresholds import Threshold
from ortopt.reporting.report import size

_MAX_NAMED: Final = 2

_SHARES: Final = (("node_share", "nodes", "nodes"), ("size_share", "size", "weights"))
"""Thresholds of shares, each with the fact of the result, and that of the original that it is related to."""


def interface(now: Facts, before: Facts, *, has_changed: bool) -> Iterator[Finding]:
    """Inputs and outputs that callers of the baseline's model could not use as they did.

    Of a model that has changed, another name of a free size is no such thing, as exporters invent these; nor is a size
    that has become free.

    Args:
        now: The facts of the run.
        before: The baseline's.
        has_changed: Whether the model, or an option, is another one than the baseline's.
    """
    for fact in ("inputs", "outputs"):
        old, new = before.get(fact, []), now.get(fact, [])
        if old != new:
            kind: Any = "note" if has_changed and _fit(old, new, is_input=fact == "inputs") else "worse"
            told = [
                f"{one or 'none'}, baseline {other or 'none'}"
                for one, other in itertools.zip_longest(new, old)
                if one != other
            ]
            more = len(told) - _MAX_NAMED
            says = f"{fact}: {'; '.join(told[:_MAX_NAMED])}{f'; and {more} more' if more > 0 else ''}"
            yield Finding(kind, fact, new, old, None, says)


class _Signature(NamedTuple):
    name: str
    type: str
    dims: list[str] | None


_SIGNATURE: Final = re.compile(r"(.*): ([^\[]*)(?:\[(.*)\])?", re.DOTALL)


def _signature(text: str) -> _Signature:
    found = _SIGNATURE.fullmatch(text)
    if found is None:
        return _Signature(text, "", None)
    dims = None if found[3] is None else re.split(r",(?![^(]*\))", found[3]) if found[3] else []
    return _Signature(found[1], found[2], dims)


def _fit(old: Sequence[str], new: Sequence[str], *, is_input: bool) -> bool:
    """Whether values can be given, or taken, as before."""
    pairs = list(zip(map(_signature, old), map(_signature, new), strict=False))
    return len(old) == len(new) and all(
        one.name == other.name and one.type == other.type and _sizes_fit(one.dims, other.dims, is_input=is_input)
        for one, other in pairs
    )


def _sizes_fit(old: list[str] | None, new: list[str] | None, *, is_input: bool) -> bool:
    if old is None or new is None:
        return not is_input or new is None
    return len(old) == len(new) and all(
        one == other or not other.isdecimal() or (not is_input and not one.isdecimal())
        for one, other in zip(old, new, strict=True)
    )


def shares(
    now: Facts, before: Facts, thresholds: Mapping[str, Threshold], told: Container[str] = ()
) -> Iterator[Finding]:
    """Nodes relative to the original's, and bytes relative to its weights.

    Where the baseline does not know its original, as an older ortopt wrote it, the figures alone count.

    Args:
        now: The facts of the run.
        before: The baseline's.
        thresholds: How much worse each figure may be.
        told: Ops of which it is told elsewhere.
    """
    for name, fact, of in _SHARES:
        new, old, threshold = now.get(fact), before.get(fact), thresholds[name]
        if new is None or old is None:
            continue
        is_now, was = _share(now, fact, of), _share(before, fact, of)
        ops = difference_of_ops(now, before, told) if fact == "nodes" else ""
        ops = f"; {ops}" if ops else ""
        told = f"{fact} {_told(fact, now, of)}, baseline {_told(fact, before, of)}"
        if is_now is None or was is None:
            if new > threshold.limit(old):
                yield Finding("worse", fact, new, old, threshold.limit(old), f"{told} (allowed: {threshold}{ops})")
            continue
        limit = threshold.limit(was)
        if is_now > limit and new > threshold.limit(old):
            yield Finding("worse", name, is_now, was, limit, f"{told} (allowed: {limit:.1%}{ops})")
        elif is_now < threshold.floor(was) and new < threshold.floor(old):
            yield Finding("better", name, is_now, was, limit, told)
        elif new != old and fact == "nodes":
            yield Finding("note", name, is_now, was, limit, told)


def _share(facts: Facts, fact: str, of: str) -> float | None:
    """A figure of the result over one of the original; None where the original's is not known, or nothing."""
    whole = facts.get("original", {}).get(of)
    return facts[fact] / whole if whole else None


def _told(fact: str, facts: Facts, of: str) -> str:
    shown = size(facts[fact]) if fact == "size" else str(facts[fact])
    share = _share(facts, fact, of)
    if share is None:
        return shown
    whole = facts["original"][of]
    return f"{shown} of {f'{size(whole)} of weights' if fact == 'size' else f'{whole} before'} ({share:.1%})"


def fused(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> Iterator[Finding]:
    """Fused ops that the result has fewer of, whether the original had them or not.

    They are no loss where as many others have come, nor where the result is smaller, by itself and relative to its
    original: then there was less to fuse, or it has been fused further.

    Args:
        now: The facts of the run.
        before: The baseline's.
        thresholds: How much worse each figure may be.
    """
    ops = sorted({*now.get("fused", {}), *before.get("fused", {})})
    new, old = ({op: facts.get("ops", {}).get(op, 0) for op in ops} for facts in (now, before))
    excused = sum(new.values()) >= sum(old.values()) or _is_smaller(now, before, thresholds)
    threshold = thresholds["fused"]
    for op in ops:
        lost = old[op] - new[op]
        if lost > 0:
            allowed = not threshold.compares or lost <= threshold.limit(old[op]) - old[op]
            says = f"fused op {op}: {new[op]}, baseline {old[op]}"
            if excused or allowed:
                yield Finding("note", f"fused.{op}", new[op], old[op], None, says)
            else:
                yield Finding("worse", f"fused.{op}", new[op], old[op], None, f"{says}: {lost} lost")


def _is_smaller(now: Facts, before: Facts, thresholds: Mapping[str, Threshold]) -> bool:
    is_now, was = (_share(facts, "nodes", "nodes") for facts in (now, before))
    if is_now is None or was is None:
        return False
    return now["nodes"] <= before["nodes"] and is_now <= thresholds["node_share"].limit(was)

"""Parts of a zoo for several machines, and their results put together."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ortopt.errors import InvalidModelError, UsageError
from ortopt.regression.baseline import Baseline
from ortopt.regression.case import Case
from ortopt.regression.results import Check, Shard, sorted_by_name
from ortopt.terminal_text import quoted


def parse(text: str) -> Shard:
    """A part, from ``I/N``.

    Raises:
        UsageError: If the text is none.
    """
    number, slash, of = text.partition("/")
    if not slash or not number.strip().isdecimal() or not of.strip().isdecimal():
        raise UsageError(f"--shard takes I/N, e.g. 1/4, not {text!r}")
    first, last = int(number), int(of)
    if not 1 <= first <= last:
        raise UsageError(f"--shard takes 1/{last} to {last}/{last}, not {text!r}")
    return Shard(first, last)


def cost_of(case: Case, baseline: Baseline | None) -> float | None:
    """The seconds that a case took when the baseline was written; None where nothing is known."""
    facts: Mapping[str, Any] = {} if baseline is None else baseline.models.get(case.name, {})
    seconds = facts.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


def part_of(cases: Sequence[Case], shard: Shard, baseline: Baseline | None) -> list[Case]:
    """The cases of one part.

    Those whose cost is recorded are shared out so that all parts take about as long, the dearest first; a new one goes
    where the hash of its name says, so that it moves no other. The answer depends on names and the baseline alone.

    Args:
        cases: All cases.
        shard: The part.
        baseline: Where costs are recorded.
    """
    costs = {case.name: cost_of(case, baseline) for case in cases}
    known = {name: cost for name, cost in costs.items() if cost is not None}
    loads = [0.0] * shard.of
    home: dict[str, int] = {}
    for name in sorted(known, key=lambda name: (-known[name], name)):
        at = min(range(shard.of), key=lambda index: (loads[index], index))
        home[name] = at
        loads[at] += known[name]
    for name in costs.keys() - known.keys():
        home[name] = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % shard.of
    return [case for case in cases if home[case.name] == shard.number - 1]


def dearest_first(cases: Sequence[Case], baseline: Baseline | None) -> list[Case]:
    """Cases in the order in which they should begin: by recorded cost, else by size; the dearest first.

    Args:
        cases: The cases.
        baseline: Where costs are recorded.
    """
    sizes = {case.name: case.nbytes for case in cases}
    known = {case.name: cost for case in cases if (cost := cost_of(case, baseline)) is not None}
    usual = statistics.median(known.values()) if known else 0.0
    return sorted(cases, key=lambda case: (-known.get(case.name, usual), -sizes[case.name], case.name))


def merge(parts: Mapping[str, Check]) -> Check:
    """The results of all parts as those of one check.

    Args:
        parts: The checks, by the names of their files.

    Raises:
        InvalidModelError: A part is missing or incomplete, a model stands in two, or they come from other versions.
    """
    if not parts:
        raise UsageError("merge takes files that --json wrote")
    _complete(parts)
    homes: dict[str, str] = {}
    for file, part in parts.items():
        for result in part.results:
            if homes.setdefault(result.name, file) != file:
                raise InvalidModelError(f"{quoted(result.name)} stands in {quoted(homes[result.name])} and in {file}")
    checks = list(parts.values())
    first = checks[0]
    for file, part in parts.items():
        if dict(part.versions) != dict(first.versions):
            raise InvalidModelError(f"{quoted(file)} comes from other versions: {_shown(part)}, not {_shown(first)}")
    return Check(
        sorted_by_name(result for part in checks for result in part.results),
        first.versions,
        first.baseline,
        tuple(sorted(set.intersection(*(set(part.missing) for part in checks)))),
        None,
        max(part.seconds for part in checks),
        False,
        tuple(dict.fromkeys(note for part in checks for note in part.notes)),
    )


def _complete(parts: Mapping[str, Check]) -> None:
    of = {part.shard.of for part in parts.values() if part.shard is not None}
    if len(of) > 1:
        raise InvalidModelError(f"these are parts of {' and of '.join(map(str, sorted(of)))}: they do not fit together")
    for number in range(1, max(of, default=0) + 1):
        have = [file for file, part in parts.items() if part.shard is not None and part.shard.number == number]
        if not have:
            raise InvalidModelError(f"part {number}/{max(of)} is missing")
        if len(have) > 1:
            raise InvalidModelError(f"part {number}/{max(of)} is there twice: {', '.join(map(quoted, have))}")
    for file, part in parts.items():
        if part.stopped:
            raise InvalidModelError(f"{quoted(file)} was interrupted: results are missing (see --resume)")


def _shown(check: Check) -> str:
    return ", ".join(f"{name} {version}" for name, version in check.versions.items())

"""What forms cost on older releases of ONNX Runtime: a verdict holds for the releases where it was measured.

``data/costs.releases.json`` has the speeds of the forms of the table that ships, at the same ranges of sizes, on other
releases; ``python -m tools.measure_releases`` renews it. For a run that allows an older release than the one with which
the table was measured, each row has to hold there, too: a form that loses on one of the releases that it allows loses,
and one that was not measured on one of them, or is not clear there, is not taken. A release that was not measured is
taken for the one before it. Nothing is said of a form that a release refuses: it is not for runs that allow that one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ortopt.analysis import costs, releases
from ortopt.analysis.costs import Circumstances, Cost, CostTable, Form, Verdict
from ortopt.analysis.kernel_history import Release
from ortopt.analysis.providers import CPU

PATH: Final = Path(__file__).with_name("data") / "costs.releases.json"

_UNMEASURED: Final = (Verdict.UNKNOWN.value,)


@functools.cache
def shipped_for(oldest: Release) -> CostTable:
    """The table that ships, for all releases from one on.

    Args:
        oldest: The oldest release that a run allows.
    """
    table, *others = costs.of_processors()
    own = releases.parse_release(table.measured.onnxruntime)
    measured = sorted(release for release in map(releases.parse_release, _data()["releases"]) if release < own)
    first = max((release for release in measured if release <= oldest), default=oldest)
    asked = [release for release in measured if release >= first]
    if oldest >= own or not asked:
        return costs.shipped()
    whole = costs.on_all_processors(table, [*others, _column(table, asked)])
    whole.name = f"{table.name}, for {releases.shown(oldest)} and newer"
    return whole


def _column(table: CostTable, asked: Sequence[Release]) -> CostTable:
    """What the rows of a table cost on some releases together."""
    data = _data()
    known = {_key(row): row["speeds"] for row in data["costs"]}
    rows = (_row(cost, known.get(cost.key, {}), asked) for cost in table.own if cost.provider == CPU)
    first, last = (releases.shown(release) for release in (asked[0], asked[-1]))
    label = f"ONNX Runtime {first}" if first == last else f"ONNX Runtime {first} to {last}"
    digest = hashlib.sha256(PATH.read_bytes() + label.encode()).hexdigest()
    measured = Circumstances(label.rpartition("Runtime ")[2], data["processor"], data["threads"], label)
    return CostTable(label, digest, (row for row in rows if row is not None), measured)


def _row(cost: Cost, speeds: Mapping[str, Any], asked: Sequence[Release]) -> Cost | None:
    """What a row costs on releases together; None where all of them refuse the form."""
    told = {name: speeds.get(name, _UNMEASURED) for name in map(releases.shown, asked)}
    each = {name: (Verdict(one[0]), tuple(one[1:])) for name, one in told.items() if one is not None}
    if not each:
        return None
    verdicts = {verdict for verdict, _ in each.values()}
    order = (Verdict.LOSES, Verdict.UNKNOWN, Verdict.PAYS, Verdict.NEUTRAL)
    verdict = next(one for one in order if one in verdicts)
    against = [name for name, (one, _) in each.items() if one is verdict]
    ends = [end for _, speed in each.values() for end in speed]
    return Cost(
        cost.form,
        cost.provider,
        verdict,
        (min(ends), max(ends)) if ends else None,
        cost.instead_of,
        cost.sizes,
        cost.at,
        cost.source,
        releases=", ".join(against) if verdict in (Verdict.LOSES, Verdict.UNKNOWN) else "",
    )


def _key(row: Mapping[str, Any]) -> tuple[Form, str, tuple[tuple[str, tuple[int, float]], ...]]:
    """What a row is about, as `Cost.key`."""
    domain, _, op_type = row["op"].rpartition("::")
    at = ((name, (low, math.inf if high is None else high)) for name, (low, high) in row.get("at", {}).items())
    return Form(domain, op_type, row.get("variant", "")), CPU, tuple(at)


@functools.cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(PATH.read_bytes())
    return data

"""The report for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table

from benchmarks.reach.fused import KINDS
from benchmarks.reach.measure import Outcome, total

UNEXPLAINED = "no pass looked at what is left of it"


def shares(outcomes: Sequence[Outcome]) -> Table:
    """By kind and exporter, under each setting."""
    settings = list(dict.fromkeys(one.setting for one in outcomes))
    table = Table("block", "exporter", title="blocks that are single ops")
    for setting in settings:
        table.add_column(setting, justify="right")
    for kind in KINDS:
        for exporter in (*sorted({one.model.exporter for one in outcomes}), "all"):
            chosen = [one for one in outcomes if kind in one.shares and exporter in {one.model.exporter, "all"}]
            if chosen:
                cells = [_cell([one for one in chosen if one.setting == setting], kind) for setting in settings]
                table.add_row(kind, exporter, *cells, end_section=exporter == "all")
    return table


def families(outcomes: Sequence[Outcome]) -> Table:
    """By family and exporter: what is missing, under each setting in turn."""
    table = Table("family", "exporter", "setting", *KINDS, title="families with missing blocks")
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[one.model.family, one.model.exporter, one.setting].append(one)
    for (family, exporter, setting), members in sorted(groups.items()):
        if setting != "original" and any(
            share.found < share.expected for one in members for share in one.shares.values()
        ):
            table.add_row(family, exporter, setting, *(_cell(members, kind, full="") for kind in KINDS))
    return table


def missed(outcomes: Sequence[Outcome], setting: str, kinds: Iterable[str] = KINDS) -> Table:
    """The reasons for missing blocks, the most frequent first, and where each is met."""
    table = Table("block", "missing", "reason", "models", title=f"missing blocks, {setting}")
    for kind in kinds:
        blocks, models = by_reason([one for one in outcomes if one.setting == setting], kind)
        for reason, count in sorted(blocks.items(), key=lambda item: -item[1]):
            table.add_row(kind, str(count), escape(reason), escape(", ".join(models[reason])))
    return table


def by_reason(outcomes: Sequence[Outcome], kind: str) -> tuple[dict[str, int], dict[str, list[str]]]:
    """How many missing blocks of a kind each reason explains, and the models with it.

    A model's missing blocks are given to its reasons in order, as many to each as it was said of places.
    """
    blocks: dict[str, int] = defaultdict(int)
    models: dict[str, list[str]] = defaultdict(list)
    for one in outcomes:
        share = one.shares.get(kind)
        missing = share.expected - share.found if share else 0
        said = {f"failed: {one.error}": missing} if one.error else one.reasons.get(kind, {})
        for reason, places in (*said.items(), (UNEXPLAINED, missing)):
            if missing:
                blocks[reason] += min(missing, places)
                models[reason].append(one.model.name)
                missing -= min(missing, places)
    return blocks, models


def surplus(outcomes: Sequence[Outcome]) -> list[str]:
    """Models with more single ops than blocks: somebody is wrong."""
    return [
        f"{one.model.name} ({one.setting}): {share.more} {kind} more than expected"
        for one in outcomes
        for kind, share in one.shares.items()
        if share.more
    ]


def _misses(outcome: Outcome) -> bool:
    return any(share.found < share.expected for share in outcome.shares.values())


def _cell(outcomes: Sequence[Outcome], kind: str, full: str | None = None) -> str:
    share = total(outcomes, kind)
    if not share.expected:
        return ""
    if full is not None and share.found == share.expected:
        return full
    percent = f"{share.found} of {share.expected}, {100 * share.found / share.expected:.0f} %"
    return percent if share.whole == share.found else f"{percent} ({share.whole} whole)"

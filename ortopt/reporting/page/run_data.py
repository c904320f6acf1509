"""What the page of one run shows, as data that json can write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ortopt.graph.refusal import Reason
from ortopt.instrumentation.graph_snapshot import GraphSnapshot
from ortopt.instrumentation.lineage import Lineage, RecordedRewrite
from ortopt.observers import HistoryEntry
from ortopt.optimization.result import OptimizeResult
from ortopt.reporting.page.graph_data import describe_graphs


def describe_run(result: OptimizeResult, report: Mapping[str, Any], lineage: Lineage | None = None) -> dict[str, Any]:
    """The run.

    Args:
        result: The result.
        report: The same as data, from `ortopt.reporting.report.as_dict`.
        lineage: What has observed the run; without it there is only the result, without what it was made of.
    """
    lineage = lineage or Lineage()
    after = lineage.snapshot(result.model)
    before = lineage.original
    kept = {row.id for row in after.nodes}
    return {
        "kind": "run",
        "title": str(report["input"] or "model"),
        "report": dict(report),
        **describe_graphs(before, after, lineage.nodes, lineage.rewrites, _changed(before, after, lineage.rewrites)),
        "metadata": sorted(result.model.metadata_props.items()),
        **describe_rewrites(lineage.rewrites),
        "history": _history(result.history),
        "refusals": _refusals(lineage.refusals(kept)),
        "profile": report.get("profile"),
    }


def describe_rewrites(rewrites: Iterable[RecordedRewrite]) -> dict[str, Any]:
    """Rewrites with the texts that they share, as data that json can write."""
    whys: dict[str, int] = {}
    rows = [
        [
            one.number,
            one.transformer,
            one.level,
            one.step,
            one.graph,
            whys.setdefault(one.why, len(whys)),
            list(one.before),
            list(one.after),
            list(one.swept),
        ]
        for one in rewrites
    ]
    return {"whys": list(whys), "rewrites": rows}


def _changed(before: GraphSnapshot | None, after: GraphSnapshot, rewrites: Iterable[RecordedRewrite]) -> Iterable[int]:
    """Nodes of the original that have been changed in place."""
    if before is None:
        return
    own = {row.id: row for row in before.nodes}
    touched = {number for one in rewrites for number in one.after}
    for row in after.nodes:
        old = own.get(row.id)
        if old is not None and (row.id in touched or row.attributes != old.attributes or row.op != old.op):
            yield row.id


def _history(history: Iterable[HistoryEntry]) -> list[list[Any]]:
    return [
        [
            entry.level,
            entry.step,
            entry.transformer,
            entry.graph,
            round(entry.seconds, 6),
            entry.nodes_before,
            entry.nodes_after,
            entry.rewrites,
        ]
        for entry in history
    ]


def _refusals(refusals: Iterable[tuple[str, int, Reason]]) -> list[list[Any]]:
    """By transformer and reason, the nodes; what differs at every node, the value, stands with the node."""
    grouped: dict[tuple[str, str], list[list[Any]]] = {}
    for transformer, number, reason in refusals:
        grouped.setdefault((transformer, reason.clause), []).append([number, reason.about])
    ranked = sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))
    return [[transformer, reason, where] for (transformer, reason), where in ranked]


__all__ = ["describe_rewrites", "describe_run"]

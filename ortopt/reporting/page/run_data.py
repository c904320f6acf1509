"""What the pages show of one run, and of two models side by side, as data that json can write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from ortopt.graph.provenance import ORIGIN_KEY, PASS_KEY
from ortopt.graph.refusal import Reason
from ortopt.instrumentation.graph_snapshot import GraphSnapshot, NodeRow, SnapshotTaker, op_of
from ortopt.instrumentation.lineage import KnownNode, Lineage, RecordedRewrite
from ortopt.observers import HistoryEntry
from ortopt.optimization.result import OptimizeResult
from ortopt.reporting.page.graph_data import describe_graphs
from ortopt.terminal_text import node_name


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


def describe_diff(first: ir.Model, second: ir.Model, data: Mapping[str, Any]) -> dict[str, Any]:
    """Two models side by side; what the second one's metadata says of its nodes' origins is told as rewrites.

    Args:
        first: The first model.
        second: The second.
        data: How they differ, from `ortopt.reporting.model_diff.compare`.
    """
    nodes: list[KnownNode] = []

    def register(node: ir.Node, label: str) -> int:
        nodes.append(KnownNode(op_of(node), node_name(node), label))
        return len(nodes) - 1

    before = SnapshotTaker(first, register).snapshot
    match = _matcher(before)
    after = SnapshotTaker(second, lambda node, label: match(node, label, register)).snapshot
    rewrites = list(_told_rewrites(before, after, nodes))
    return {
        "kind": "diff",
        "title": f"{data['a']} and {data['b']}",
        "diff": dict(data),
        **describe_graphs(before, after, nodes, rewrites, _differing(before, after)),
        **describe_rewrites(rewrites),
    }


def _matcher(before: GraphSnapshot) -> Callable[[ir.Node, str, Callable[[ir.Node, str], int]], int]:
    """Finds nodes of the first model again: by name or by the name of a result, with the same op, in the same graph."""
    known: dict[tuple[str, str, str], int] = {}
    for row in reversed(before.nodes):
        graph = before.graphs[row.graph].label
        for name in (row.name, *(before.values[position].name for position in row.outputs)):
            if name:
                known[graph, row.op, name] = row.id
    taken: set[int] = set()

    def match(node: ir.Node, label: str, register: Callable[[ir.Node, str], int]) -> int:
        for name in (node.name, *(value.name for value in node.outputs)):
            number = known.get((label, op_of(node), name)) if name else None
            if number is not None and number not in taken:
                taken.add(number)
                return number
        return register(node, label)

    return match


def _differing(before: GraphSnapshot, after: GraphSnapshot) -> Iterator[int]:
    """Nodes of both that read other values, or have other attributes."""
    own = {row.id: row for row in before.nodes}
    for row in after.nodes:
        old = own.get(row.id)
        if old is not None and (row.attributes != old.attributes or _reads(after, row) != _reads(before, old)):
            yield row.id


def _reads(snapshot: GraphSnapshot, row: NodeRow) -> list[str]:
    return ["" if position < 0 else snapshot.values[position].name for position in row.inputs]


def _told_rewrites(before: GraphSnapshot, after: GraphSnapshot, nodes: list[KnownNode]) -> Iterator[RecordedRewrite]:
    """What ``--provenance`` has written into the second model."""
    named: dict[str, list[int]] = defaultdict(list)
    for row in before.nodes:
        named[nodes[row.id].name].append(row.id)
    for row in after.nodes:
        told = dict(row.metadata)
        if PASS_KEY not in told:
            continue
        origins = [one for name in told.get(ORIGIN_KEY, "").split(", ") if name for one in named.get(name, ())]
        yield RecordedRewrite(0, told[PASS_KEY], 0, 0, nodes[row.id].graph, "", tuple(origins), (row.id,), ())

"""The pages of a run, of several, and of two models, as text; the data that they show."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import onnx_ir as ir

import ortopt
from ortopt.graph.provenance import ORIGIN_KEY, PASS_KEY
from ortopt.graph.refusal import Reason
from ortopt.instrumentation.graph_snapshot import GraphSnapshot, NodeRow, SnapshotTaker, op_of
from ortopt.instrumentation.lineage import KnownNode, Lineage, RecordedRewrite
from ortopt.observers import HistoryEntry
from ortopt.optimization.result import OptimizeResult
from ortopt.reporting.page.graph_data import describe_graphs
from ortopt.reporting.report import as_dict
from ortopt.system.files import write_atomically
from ortopt.terminal_text import node_name, one_line

if TYPE_CHECKING:
    import onnx_ir as ir


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


_ASSETS: Final = "assets"
SCRIPT: Final = "report.js"
STYLE: Final = "report.css"

_POLICY: Final = "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'"
"""Only this very script and style: whatever else may look like one is not run, and nothing is fetched."""

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="ortopt {version}">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript><p>This page needs JavaScript, which it brings along; it asks the network for nothing.</p></noscript>
<main id="page" aria-busy="true"></main>
<script type="text/plain" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def document(data: Mapping[str, Any]) -> str:
    """The page that shows some data.

    The data is compressed and in Base64: no name in it can be markup. The script makes text of it, never elements.

    Args:
        data: From `describe_run`, `describe_diff` or `describe_check`; its ``title`` is the page's.
    """
    script, style = asset(SCRIPT), asset(STYLE)
    text = json.dumps({"ortopt": ortopt.__version__, **data}, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return _PAGE.format(
        policy=_POLICY.format(script=_digest(script), style=_digest(style)),
        version=html.escape(ortopt.__version__),
        title=html.escape(one_line(f"{data['title']} · ortopt")),
        style=style,
        data=base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii"),
        script=script,
    )


def index(
    title: str, subtitle: str, kinds: Mapping[str, str], rows: Iterable[Mapping[str, Any]], notes: Iterable[str] = ()
) -> str:
    """An index over models, which is sorted and filtered in the browser; the worst models are on top at first.

    Args:
        title: The page's title.
        subtitle: What it is an index of.
        kinds: How each status is coloured, the worst status first.
        rows: The models, in the order of those that have one status.
        notes: What else is to be told.
    """
    rank = {status: place for place, status in enumerate(kinds)}
    ranked = sorted(rows, key=lambda row: rank[row["status"]])
    counts = Counter(row["status"] for row in ranked)
    told = {"kind": "check", "title": title, "subtitle": subtitle, "counts": counts, "kinds": kinds}
    return document({**told, "notes": list(notes), "rows": ranked})


def asset(name: str) -> str:
    """A built file that comes with ortopt, as text."""
    return importlib.resources.files(__package__).joinpath(_ASSETS, name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"


_KINDS: Final = {"broken": "bad", "not verified": "unknown", "verified": "good"}
"""How an index colours what became of a model, the worst first."""


def page_of(result: OptimizeResult, title: str = "model") -> str:
    """The page of a result for a browser, which needs nothing else.

    It shows what each node was made of only where a `Lineage` has observed the run:
    ``page_of(optimize(model, observers=[ortopt.Lineage()]))``.

    Args:
        result: The result.
        title: The page's title.
    """
    return run_page(result, as_dict(result, source=title))


def write_page(result: OptimizeResult, path: str | os.PathLike[str], title: str | None = None) -> None:
    """Write the page of a result, atomically (see `page_of`).

    Args:
        result: The result.
        path: The file.
        title: The page's title; the file's name if None.

    Raises:
        OutputError: If it cannot be written.
    """
    write_atomically(path, page_of(result, Path(path).stem if title is None else title).encode("utf-8"))


def run_page(result: OptimizeResult, report: Mapping[str, Any]) -> str:
    """The page of a run.

    Args:
        result: The result.
        report: The same as data, from `ortopt.reporting.report.as_dict`.
    """
    return document(describe_run(result, report, result.lineage))


def diff_page(first: ir.Model, second: ir.Model, data: Mapping[str, Any]) -> str:
    """The page that compares two models.

    Args:
        first: The first model.
        second: The second.
        data: How they differ, from `ortopt.reporting.model_diff.compare`.
    """
    return document(describe_diff(first, second, data))


def index_page(title: str, reports: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    """An index over the pages of several runs.

    Args:
        title: The page's title.
        reports: The reports, from `ortopt.reporting.report.as_dict`, each with the address of its page, or with none.
    """
    rows = [_row(report, page) for report, page in reports]
    subtitle = "1 model" if len(rows) == 1 else f"{len(rows)} models"
    return index(title, subtitle, _KINDS, rows)


def _row(report: Mapping[str, Any], page: str) -> dict[str, Any]:
    nodes = report.get("nodes") or {}
    outcome = report.get("verification") or {}
    return {
        "name": str(report["input"]),
        "page": page,
        "status": "broken" if report.get("error") else "verified" if report.get("verified") else "not verified",
        "nodes_before": nodes.get("before"),
        "nodes": nodes.get("after"),
        "size": (report.get("file_bytes") or {}).get("after"),
        "error": outcome.get("worst"),
        "rewrites": report.get("rewrites"),
        "seconds": sum(report["seconds"].values()) if report.get("seconds") else None,
        "says": [str(text) for text in (report.get("error"), outcome.get("not_as_deployed")) if text],
    }

"""The graphs of a page as data: two snapshots, how they fold, and what became of each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ortopt.graph.module_scopes import Path
from ortopt.instrumentation.graph_snapshot import GraphSnapshot
from ortopt.instrumentation.lineage import KnownNode, RecordedRewrite
from ortopt.instrumentation.module_paths import paths, paths_of_new
from ortopt.reporting.page.folding import Folding, fold


def describe_graphs(
    before: GraphSnapshot | None,
    after: GraphSnapshot,
    nodes: Sequence[KnownNode],
    rewrites: Sequence[RecordedRewrite],
    changed: Iterable[int] = (),
) -> dict[str, Any]:
    """Both graphs, as data that json can write.

    Args:
        before: The original; None where there is none to show.
        after: The result.
        nodes: Every node of both and those between, by id.
        rewrites: What made the one of the other.
        changed: Ids of nodes that are in both, and differ.
    """
    first = before or after
    around = paths(first)
    readers = _readers(first)
    folding = fold(around, {row.id: row.op for row in first.nodes}, readers)
    if before is not None:
        modules = _group_of_each_module(folding, {one: path for one, path in around.items() if one not in readers})
        _place(after, folding, paths_of_new(after, around), modules, _origins(rewrites))
    ops = list(dict.fromkeys(node.op for node in nodes))
    graphs = list(dict.fromkeys(node.graph for node in nodes))
    op_at, graph_at = ({text: at for at, text in enumerate(texts)} for texts in (ops, graphs))
    return {
        "ops": ops,
        "graphs": graphs,
        "nodes": [
            [op_at[node.op], node.name, graph_at[node.graph], folding.of.get(number, -1)]
            for number, node in enumerate(nodes)
        ],
        "groups": [[group.parent, group.label, group.alike] for group in folding.groups],
        "before": None if before is None else _plain(before),
        "after": _plain(after),
        "changed": sorted(set(changed)),
    }


def _plain(snapshot: GraphSnapshot) -> dict[str, Any]:
    return {
        "nodes": [[row.id, row.inputs, row.outputs, row.attributes, row.metadata] for row in snapshot.nodes],
        "values": [[row.name, row.type, row.shape, row.kind, row.producer] for row in snapshot.values],
        "inputs": snapshot.inputs,
        "outputs": snapshot.outputs,
    }


def _readers(snapshot: GraphSnapshot) -> dict[int, int]:
    """Of nodes that depend on weights alone, a node that reads them and depends on more."""
    alone = {row.id for row in snapshot.nodes if all(_is_weight(snapshot, position) for position in row.inputs)}
    readers: dict[int, int] = {}
    for row in snapshot.nodes:
        for position in row.inputs if row.id not in alone else ():
            if position >= 0 and (producer := snapshot.values[position].producer) in alone:
                readers.setdefault(producer, row.id)
    return readers


def _is_weight(snapshot: GraphSnapshot, position: int) -> bool:
    return position < 0 or snapshot.values[position].kind == "weight"


def _origins(rewrites: Iterable[RecordedRewrite]) -> dict[int, tuple[int, ...]]:
    """The nodes that each new one stands for, by id; of several rewrites, the first."""
    origins: dict[int, tuple[int, ...]] = {}
    for rewrite in rewrites:
        for number in rewrite.after:
            if number not in rewrite.before:
                origins.setdefault(number, rewrite.before)
    return origins


def _place(
    after: GraphSnapshot,
    folding: Folding,
    told: Mapping[int, tuple[Path, ...]],
    modules: Mapping[Path, int],
    origins: Mapping[int, tuple[int, ...]],
) -> None:
    """Put new nodes into the modules that their names tell, else where those stood that they stand for."""
    readers = _readers(after)
    for number, paths_ in told.items():
        group = next((modules[path] for whole in paths_ for path in _outwards(whole) if path in modules), None)
        if group is not None and number not in readers:
            folding.of.setdefault(number, group)
    for row in after.nodes:
        if row.id not in folding.of and row.id not in readers:
            _place_one(row.id, folding, origins)
    for number, reader in readers.items():
        folding.of.setdefault(number, folding.of.get(reader, 0))
    for row in after.nodes:
        folding.of.setdefault(row.id, 0)


def _group_of_each_module(folding: Folding, around: Mapping[int, Path]) -> dict[Path, int]:
    """The innermost group that holds all nodes of a module."""
    groups: dict[Path, list[int]] = {}
    for number, path in around.items():
        line = _ancestors(folding.of[number], folding)
        for module in _outwards(path):
            shared = groups.get(module)
            if shared is None:
                groups[module] = line
            else:
                length = next((at for at, (a, b) in enumerate(zip(shared, line, strict=False)) if a != b), len(shared))
                groups[module] = shared[: min(length, len(line))]
    return {(): 0} | {module: line[-1] for module, line in groups.items()}


def _outwards(path: Path) -> Iterator[Path]:
    """A module, and those around it; the whole model counts for none of those."""
    yield path
    for depth in range(len(path) - 1, 0, -1):
        yield path[:depth]


def _place_one(number: int, folding: Folding, origins: Mapping[int, tuple[int, ...]]) -> None:
    """Give a node its group, and first those that it comes from."""
    pending, entered = [number], set()
    while pending:
        current = pending[-1]
        unplaced = [one for one in origins.get(current, ()) if one not in folding.of and one not in entered]
        if current in folding.of or not unplaced:
            pending.pop()
            around = [folding.of[one] for one in origins.get(current, ()) if one in folding.of]
            folding.of.setdefault(current, _around(around, folding))
            continue
        entered.update(unplaced)
        pending += unplaced


def _around(groups: Sequence[int], folding: Folding) -> int:
    """The innermost group that holds more than half of them; the last one's where that is the whole model."""
    counts = Counter(one for group in groups for one in _ancestors(group, folding))
    holding = [group for group, count in counts.items() if group and 2 * count > len(groups)]
    return max(holding, key=lambda group: len(_ancestors(group, folding)), default=groups[-1] if groups else 0)


def _ancestors(group: int, folding: Folding) -> list[int]:
    line = []
    while group >= 0:
        line.append(group)
        group = folding.groups[group].parent
    return line[::-1]

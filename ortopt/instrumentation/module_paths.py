"""Where each node stands among the modules of the network, by metadata of exporters and by names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx_ir as ir

from ortopt.graph.module_scopes import SCOPES_KEY, Path, common, modules, scope_of
from ortopt.instrumentation.graph_snapshot import GraphSnapshot, NodeRow, SnapshotTaker

MAX_DEPTH: Final = 12
"""Modules of a path; deeper ones count as the last."""


def paths(snapshot: GraphSnapshot) -> dict[int, Path]:
    """The modules around each node, outermost first, by id.

    A node that says nothing of it stands where those stand that read its results, else where its operands do.

    Args:
        snapshot: The model.
    """
    found: dict[int, Path] = {}
    unclear: list[NodeRow] = []
    for row in snapshot.nodes:
        prefix = _prefix(snapshot, row, found)
        own = own_path(row)
        if own is None and not prefix:
            unclear.append(row)
        else:
            found[row.id] = (prefix + (own or ()))[:MAX_DEPTH]
    _settle(snapshot, unclear, found)
    return found


def paths_of_nodes(model: ir.Model) -> dict[ir.Node, Path]:
    """The same of a model as it is: the modules around each node, none where nothing is said."""
    nodes: list[ir.Node] = []

    def number(node: ir.Node, _: str) -> int:
        nodes.append(node)
        return len(nodes) - 1

    found = paths(SnapshotTaker(model, number).snapshot)
    return {node: found.get(at, ()) for at, node in enumerate(nodes)}


def paths_of_new(snapshot: GraphSnapshot, known: Mapping[int, Path]) -> dict[int, tuple[Path, ...]]:
    """Where nodes stand that are not in another model, as far as they say it, by id: the first path first that may fit.

    Args:
        snapshot: The model.
        known: The modules around the nodes of the other model.
    """
    found: dict[int, Path] = dict(known)
    new: dict[int, tuple[Path, ...]] = {}
    for row in snapshot.nodes:
        if row.id in found:
            continue
        prefix, own = _prefix(snapshot, row, found), own_path(row)
        found[row.id] = prefix + (own or ())
        if own is not None or prefix:
            new[row.id] = (found[row.id],) if own is None or not prefix else (found[row.id], own)
    return new


def own_path(row: NodeRow) -> Path | None:
    """What a node says of the modules around it; None if nothing."""
    scopes = next((text for key, text in row.metadata if key == SCOPES_KEY), None)
    if scopes is not None and (path := modules(scopes)) is not None:
        return path
    scope = scope_of(row.name)
    return None if scope is None else tuple(part for part in scope if part)


def _prefix(snapshot: GraphSnapshot, row: NodeRow, found: Mapping[int, Path]) -> Path:
    """What stands before the path of a node in a nested graph or in a function."""
    if not row.graph:
        return ()
    graph = snapshot.graphs[row.graph]
    if graph.parent < 0:
        return (graph.label,)
    return (*found.get(graph.parent, ()), graph.label.rpartition("/")[2])


def _settle(snapshot: GraphSnapshot, unclear: list[NodeRow], found: dict[int, Path]) -> None:
    readers: dict[int, list[int]] = {}
    for row in snapshot.nodes:
        for position in row.inputs:
            if position >= 0 and (producer := snapshot.values[position].producer) >= 0:
                readers.setdefault(producer, []).append(row.id)
    for row in reversed(unclear):
        behind = [found[reader] for reader in readers.get(row.id, ()) if reader in found]
        if behind:
            found[row.id] = common(behind)
    for row in unclear:
        if row.id not in found:
            producers = (snapshot.values[position].producer for position in row.inputs if position >= 0)
            found[row.id] = common(found[one] for one in producers if one in found)

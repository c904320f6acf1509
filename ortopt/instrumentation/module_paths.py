"""Where each node stands among the modules of the network, by metadata of exporters and by names."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from ortopt.instrumentation.graph_snapshot import SCOPES_KEY, GraphSnapshot, NodeRow

Path: TypeAlias = tuple[str, ...]

MAX_DEPTH: Final = 12
"""Modules of a path; deeper ones count as the last."""

MAX_SCOPES_TEXT: Final = 20_000


def paths(snapshot: GraphSnapshot, known: Mapping[int, Path] | None = None) -> dict[int, Path]:
    """The modules around each node, outermost first, by id.

    A node that says nothing of it stands where those stand that read its results, else where its operands do.

    Args:
        snapshot: The model.
        known: Paths of nodes that are known already.
    """
    found: dict[int, Path] = dict(known or {})
    unclear: list[NodeRow] = []
    for row in snapshot.nodes:
        if row.id in found:
            continue
        prefix = _prefix(snapshot, row, found)
        own = own_path(row)
        if own is None and not prefix:
            unclear.append(row)
        else:
            found[row.id] = (prefix + (own or ()))[:MAX_DEPTH]
    _settle(snapshot, unclear, found)
    return found


def own_path(row: NodeRow) -> Path | None:
    """What a node says of the modules around it; None if nothing."""
    scopes = next((text for key, text in row.metadata if key == SCOPES_KEY), None)
    if scopes is not None and (path := _from_scopes(scopes)) is not None:
        return path
    if "/" in row.name:
        return tuple(part for part in row.name.split("/")[:-1] if part)
    return None


def _from_scopes(text: str) -> Path | None:
    """The path from ``['', 'm', 'm.layers.1', 'm.layers.1.attention', 'add_3']``: each says the one before it again."""
    if len(text) > MAX_SCOPES_TEXT:
        return None
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        return None
    path: list[str] = []
    around = ""
    for scope in scopes[:-1]:
        own = scope[len(around) + 1 :] if around and scope.startswith(f"{around}.") else scope
        if own:
            path.append(own)
            around = scope
    return tuple(path)


def _prefix(snapshot: GraphSnapshot, row: NodeRow, found: Mapping[int, Path]) -> Path:
    """What stands before the path of a node in a nested graph or in a function."""
    if not row.graph:
        return ()
    graph = snapshot.graphs[row.graph]
    if graph.parent < 0:
        return (graph.label,)
    return (*found.get(graph.parent, ()), graph.label.rpartition("/")[2])


def common(paths_: Iterable[Path]) -> Path:
    """What all paths begin with."""
    given = iter(paths_)
    shared = next(given, ())
    for path in given:
        length = next((at for at, (a, b) in enumerate(zip(shared, path, strict=False)) if a != b), None)
        shared = shared[: min(len(shared), len(path)) if length is None else length]
    return shared


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

"""`Heritage`: what new nodes have from the nodes that they stand for: provenance, metadata, names in their scope."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import onnx_ir as ir

from ortopt.graph import module_scopes, scope
from ortopt.graph.module_scopes import common_scope, scoped_name
from ortopt.graph.provenance import ORIGIN_KEY, PASS_KEY, VALUES_KEY, origins_of, take_origins

MAX_DIVIDED: Final = 64
"""New nodes of a rewrite that replaces more values stand for all of its nodes: each value costs a walk."""


class Heritage:
    """What nodes that stand for others have from these.

    Args:
        origins: The nodes that they stand for, as they are before an edit changes the names of their results.
    """

    def __init__(self, origins: Iterable[ir.Node]) -> None:
        self._origins = tuple(origins)
        self._scope = common_scope(self._origins)
        self._names = tuple(dict.fromkeys(name for origin in self._origins for name in origins_of(origin)))
        self._metadata = [origin.metadata_props for origin in self._origins]
        self._doc_string = next((origin.doc_string for origin in self._origins if origin.doc_string), None)

    def name_of(self, node: ir.Node) -> str:
        """What a new node is called, but for the number that makes its name unique."""
        return scoped_name(node, self._scope, self._origins)

    def give(self, node: ir.Node, author: str = "") -> None:
        """Give a new node, which has its name, provenance and metadata.

        Args:
            node: The node; what it says already stays.
            author: The transformer that makes it, if one does.
        """
        if not self._origins:
            return
        if author:
            node.meta[PASS_KEY] = author
        node.meta[ORIGIN_KEY] = self._names
        if any(self._metadata):
            modules = module_scopes.joined(self._metadata, node.name or node.op_type, node.op_type)
            for entries in (modules, *self._metadata):
                for key, text in entries.items():
                    if key != VALUES_KEY:  # an earlier run's, of the origin's own outputs
                        node.metadata_props.setdefault(key, text)
        node.doc_string = node.doc_string or self._doc_string


def heritages(
    nodes: Sequence[ir.Node],
    origins: Sequence[ir.Node],
    single: Mapping[ir.Node, Sequence[ir.Node]],
) -> list[Heritage]:
    """What each new node of an edit has from the nodes that it stands for.

    Those that `ortopt.graph.provenance.stands_for` has said of it, and besides, if that has been said of all new nodes,
    those of which it has been said of none. If nothing has been said of it, the latter, if there are any, or all.

    Args:
        nodes: The new nodes.
        origins: The nodes that they stand for together.
        single: Those of them that single new nodes stand for (see `origins_by_node`).
    """
    said = [take_origins(node) for node in nodes]
    claimed = {origin for own in said for origin in own}
    left = [origin for origin in origins if origin not in claimed] if claimed else origins
    shared, is_complete = Heritage(left or origins), all(said)
    found: list[Heritage] = []
    for node, own in zip(nodes, said, strict=True):
        besides = [one for one in single[node] if one not in claimed] if node in single else left
        if own:
            found.append(Heritage((*own, *besides) if is_complete else own))
        else:
            found.append(Heritage(besides or single[node]) if node in single else shared)
    return found


def origins_by_node(
    replacements: Mapping[ir.Value, ir.Value], nodes: Collection[ir.Node], origins: Sequence[ir.Node]
) -> dict[ir.Node, list[ir.Node]]:
    """Which nodes each new node of a rewrite stands for, where the rewrite replaces several values.

    A new node stands for the nodes that served the same of these values, where there are such, else for those that
    served any of them. What serves a value computes it, from other replaced values on.

    Args:
        replacements: Old value to new value.
        nodes: The new nodes.
        origins: The nodes that they stand for together.

    Returns:
        The origins of those new nodes that do not stand for all of them.
    """
    if not 2 <= len(replacements) <= MAX_DIVIDED or len(origins) < 2:
        return {}
    served = _served(replacements, set(origins))
    alike: dict[frozenset[int], list[ir.Node]] = {}
    for origin in origins:
        alike.setdefault(served.get(origin, frozenset()), []).append(origin)
    found: dict[ir.Node, list[ir.Node]] = {}
    for node, places in _served(replacements.values(), set(nodes)).items():
        own = alike.get(places) or [origin for origin in origins if not places.isdisjoint(served.get(origin, ()))]
        if own:
            found[node] = own
    return found


def _served(values: Iterable[ir.Value], members: Collection[ir.Node]) -> dict[ir.Node, frozenset[int]]:
    """Which of some values, by their places, each member serves."""
    listed = list(values)
    ends = frozenset(listed)
    places: dict[ir.Node, set[int]] = {}
    for place, value in enumerate(listed):
        for node in _behind(value, members, ends):
            places.setdefault(node, set()).add(place)
    return {node: frozenset(own) for node, own in places.items()}


def _behind(value: ir.Value, members: Collection[ir.Node], ends: Collection[ir.Value]) -> Iterator[ir.Node]:
    """The members that compute a value, up to the values at which others end."""
    pending, seen = [value], set[ir.Node]()
    while pending:
        node = pending.pop().producer()
        if node is None or node in seen or node not in members:
            continue
        seen.add(node)
        yield node
        operands = (operand for user in scope.with_nested(node) for operand in user.inputs)
        pending += [operand for operand in operands if operand is not None and operand not in ends]

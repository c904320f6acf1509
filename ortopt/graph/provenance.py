"""Provenance: which transformer made a node, from which nodes, and in place of which values its outputs are.

`ortopt.graph.edit` writes it under keys of ``meta`` of nodes and values, and names new nodes by it
(`ortopt.graph.module_scopes`); `ortopt.serialization.encode` puts it into the metadata of a file's nodes, and
`record_of` reads it from either.
"""

from __future__ import annotations

import json
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from ortopt import documents
from ortopt.onnx_ir_internals import get_meta
from ortopt.terminal_text import node_name

PASS_KEY: Final = "ortopt.pass"
"""The name of the transformer."""

ORIGIN_KEY: Final = "ortopt.origin"
"""The names of the original nodes that it stands for."""

VALUES_KEY: Final = "ortopt.values"
"""Of a value, the names of the original's values in whose place it is; of a node in a file, those of each output."""

NEEDS_KEY: Final = "ortopt.needs"
"""What a node needs of its kernel and its form does not show: the name of a fact of `ortopt.analysis.kernel_history`.

Nodes in its place, and a file, say it, too: else nobody would know later that a guard has gone because of it.
"""

MAX_ORIGINS: Final = 8
"""How many of them a file names; beyond, their count."""

MAX_VALUES: Final = 4
"""In place of how many values one is at most: equal ones become one."""


_STANDS_FOR: Final = "ortopt.stands_for"
"""Nodes that a pass has named for one new node, until it comes into a graph."""


def stands_for(new: ir.Node, *origins: ir.Node) -> ir.Node:
    """Say which nodes a new node stands for, where a rewrite makes several that stand for different ones.

    Else each new node of a rewrite stands for all that the rewrite replaces. The node's name, its metadata and its
    provenance follow.

    Args:
        new: A node that is in no graph yet.
        origins: The nodes that it stands for; if none are given, nothing is said.

    Returns:
        The new node.
    """
    if origins:
        new.meta[_STANDS_FOR] = origins
    return new


def take_origins(new: ir.Node) -> tuple[ir.Node, ...]:
    """What `stands_for` has said of a new node; it is forgotten."""
    said: tuple[ir.Node, ...] = get_meta(new, _STANDS_FOR) or ()
    if said:
        del new.meta[_STANDS_FOR]
    return said


def origins_of(node: ir.Node) -> tuple[str, ...]:
    """The names of the original nodes that a node stands for: its own if it is one of them.

    One without a name goes by that of its first result, else by its op.
    """
    return get_meta(node, ORIGIN_KEY) or (node_name(node) or node.op_type,)


class Record(Struct, frozen=True):
    """What is recorded of a node that a transformer has made.

    Attributes:
        transformer: The transformer's name; empty where the node is the original's, and a rewrite has changed a value.
        origins: Names of the nodes that it was made from; the last text may be a count of those left out.
        values: For each output, the names of the original's values in whose place it is; empty where it is new.
    """

    transformer: str
    origins: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]


def values_of(value: ir.Value) -> tuple[str, ...]:
    """The names of the original's values in whose place a value is: what no transformer made is in its own.

    Where a rewrite has changed it on purpose, and makes up for that further down, it is in no value's place.

    Args:
        value: A value in a run, or after it.
    """
    known: tuple[str, ...] | None = get_meta(value, VALUES_KEY)
    if known is not None:
        return known
    node = value.producer()
    is_new = node is not None and get_meta(node, PASS_KEY) is not None
    return (value.name,) if value.name and not is_new else ()


def values_text(node: ir.Node) -> str:
    """What a file says of the values in whose place a node's outputs are; empty where there is nothing to say."""
    values = [get_meta(value, VALUES_KEY) for value in node.outputs]
    is_told = any(values) if get_meta(node, PASS_KEY) is not None else () in values
    return json.dumps([names or () for names in values]) if is_told else ""


def record_of(node: ir.Node) -> Record | None:
    """What is recorded of a node, in memory or in the metadata of its file; None where it is nobody's.

    What others have put in place of the record counts as none.

    Args:
        node: A node.
    """
    author, known = get_meta(node, PASS_KEY), [get_meta(value, VALUES_KEY) for value in node.outputs]
    if author is not None or () in known:
        return Record(str(author or ""), tuple(get_meta(node, ORIGIN_KEY) or ()), tuple(names or () for names in known))
    told = node.metadata_props
    if not told.keys() & {PASS_KEY, VALUES_KEY}:
        return None
    origins = tuple(name for name in told.get(ORIGIN_KEY, "").split(", ") if name)
    try:
        values = documents.typed(documents.parse_json(told.get(VALUES_KEY, "[]")), tuple[tuple[str, ...], ...])
    except ValueError:
        values = ()
    missing = ((),) * (len(node.outputs) - len(values))
    return Record(told.get(PASS_KEY, ""), origins, (*values, *missing)[: len(node.outputs)])

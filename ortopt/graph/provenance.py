"""Provenance: which transformer made a node, from which nodes, under keys of ``node.meta`` and of a file's metadata.

`ortopt.graph.edit` writes them, and names new nodes by them (`ortopt.graph.scoped_names`);
`ortopt.serialization.encode` puts them into files.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.onnx_ir_internals import get_meta
from ortopt.terminal_text import node_name

PASS_KEY: Final = "ortopt.pass"
"""The name of the transformer."""

ORIGIN_KEY: Final = "ortopt.origin"
"""The names of the original nodes that it stands for."""

MAX_ORIGINS: Final = 8
"""How many of them a file names; beyond, their count."""

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

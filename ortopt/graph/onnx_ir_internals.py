"""The few things that onnx-ir knows in constant time and tells publicly only in linear time.

``Value.uses()`` copies all uses; a shared constant with 30,000 of them makes that the cost of a rewrite. The linked
list of nodes does not say who stands before whom. Nothing else in ortopt looks behind onnx-ir's public names.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir._core import Usage


def use_count(value: ir.Value) -> int:
    """How many node inputs a value feeds, those in subgraphs included."""
    return len(value._uses)


def first_use(value: ir.Value) -> Usage | None:
    """A use of a value (the oldest), or None."""
    return next(iter(value._uses), None)


def previous_node(node: ir.Node) -> ir.Node | None:
    """The node that stands before a node in its graph, or None for the first.

    Args:
        node: A node of a graph.
    """
    assert node.graph is not None
    box = node.graph._nodes._value_ids_to_boxes[id(node)].prev
    return box.value


__all__ = ["Usage", "first_use", "previous_node", "use_count"]
